"""How a text is continued: options of `petra-graph predict --prompt`, of `petra_graph.sample`, and of plugins that sample. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from petra_graph.errors import SpecError
from petra_graph.plugins import AtLeast, Length, option
from petra_graph.spec.strict_values import structure_as


@frozen(kw_only=True)
class SamplingOptions:
    """What is drawn, and how."""

    prompt: str = option("text to continue", default="\n", validator=Length(at_least=1))
    tokens: int = option("length of the continuation", default=200, unit="tokens", validator=AtLeast(1))
    temperature: float = option("divides the logits; 0: always the likeliest token", default=0.8, validator=AtLeast(0))
    top_k: int | None = option(
        "draw from this many of the likeliest tokens; default: all", default=None, validator=AtLeast(1)
    )
    seed: int = option("seed of the draws", default=0, validator=AtLeast(0))


def read_sampling_options(given: Mapping[str, Any]) -> SamplingOptions:
    """Return options by their names; those that are None have their defaults.

    Raises:
        SpecError: some are out of range, or unknown; all of them.
    """
    values = {name: value for name, value in given.items() if value is not None}
    options, problems = structure_as(SamplingOptions, values, (), names={(): "the options of sampling"})
    if options is None:
        raise SpecError(problems)
    return options

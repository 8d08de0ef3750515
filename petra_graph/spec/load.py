"""A specification loaded from its file: read, extended, overridden and structured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from attrs import frozen

from petra_graph.errors import Path, Problem
from petra_graph.spec.extends import read_layers
from petra_graph.spec.merge import Layers
from petra_graph.spec.model import Spec
from petra_graph.spec.overrides import apply_overrides
from petra_graph.spec.source import STDIN
from petra_graph.spec.structure import structure


@frozen(kw_only=True)
class LoadedSpec:
    """A specification or its problems."""

    spec: Spec | None
    """None where there are problems."""
    parts: Mapping[Path, Any]
    """The readable tables that name plugins, and the readable nodes, by path; complete where there are no problems."""
    problems: tuple[Problem, ...]
    layers: Layers

    @property
    def values(self) -> Mapping[str, Any]:
        """The merged values, as TOML gave them."""
        return self.layers.values

    @property
    def text(self) -> str:
        """The text of the given file, before the merge."""
        return self.layers.sources[0].text

    def located(self, problems: Iterable[Problem]) -> tuple[Problem, ...]:
        """Return the problems located, without repetition, in the order of their positions."""
        return self.layers.in_order(problems)


def load(path: str, overrides: Iterable[str] = ()) -> LoadedSpec:
    """Load a specification.

    Args:
        path: a TOML file, or "-" for the standard input.
        overrides: `--set` assignments, KEY=VALUE.

    Returns:
        the specification, or its problems; those are located and in reading order.

    Raises:
        SpecError: a text cannot be read or is not TOML.
    """
    layers, problems = apply_overrides(read_layers(path), overrides)
    structured = structure({"name": default_name(path)} | dict(layers.values))
    problems = layers.in_order(problems + structured.problems)
    return LoadedSpec(
        spec=None if problems else structured.spec, parts=structured.parts, problems=problems, layers=layers
    )


def default_name(path: str) -> str:
    """Return the name of a run whose specification has none: the file's name without its ending."""
    return "stdin" if path == STDIN else re.sub(r"[^\w.-]+", "-", PurePath(path).stem).lstrip(".") or "run"

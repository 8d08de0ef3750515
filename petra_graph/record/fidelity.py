"""How true a stage's gradient is, and the names under which metrics hold it.

    probe/cosine_to_delayed/stage-03                the gradient that trains stage 3, against the delayed one
    probe/ratio_to_delayed/stage-03
    probe/cosine_to_end_to_end/stage-03             the same gradient, against the end-to-end one
    probe/ratio_to_end_to_end/stage-03
    probe/delayed_cosine_to_end_to_end/stage-03     the delayed gradient, against the end-to-end one
    probe/delayed_ratio_to_end_to_end/stage-03
    probe/reconstruction_error/stage-03             of a stage that reconstructs

A cosine is <a, b> / (|a| |b|), a ratio |a| / |b| with the gradient that is named first above (PETRA appendix B). A
reconstruction's error is |x~ - x| / |x| over all inputs that the stage reconstructs, x being what the forward read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from attrs import frozen

PREFIX = "probe/"
_STAGE = re.compile(r"probe/(?P<quantity>\w+)/stage-(?P<stage>\d+)")


@frozen(kw_only=True)
class Likeness:
    """One gradient against another."""

    cosine: float
    ratio: float
    """Norm of the one over norm of the other."""


@frozen(kw_only=True)
class StageFidelity:
    """One stage at one micro-batch; None where nothing can be said: no parameters, or a gradient of zero."""

    stage: int
    """From 1 to J."""
    to_delayed: Likeness | None
    to_end_to_end: Likeness | None
    delayed_to_end_to_end: Likeness | None
    reconstruction_error: float | None


@frozen(kw_only=True)
class Fidelity:
    """All stages at one micro-batch."""

    micro_batch: int
    stages: tuple[StageFidelity, ...]

    def values(self) -> Mapping[str, float]:
        """Return everything by the name of its metric."""
        values: dict[str, float] = {}
        for found in self.stages:
            quantities = {
                **_named("cosine_to_delayed", "ratio_to_delayed", found.to_delayed),
                **_named("cosine_to_end_to_end", "ratio_to_end_to_end", found.to_end_to_end),
                **_named("delayed_cosine_to_end_to_end", "delayed_ratio_to_end_to_end", found.delayed_to_end_to_end),
            }
            if found.reconstruction_error is not None:
                quantities["reconstruction_error"] = found.reconstruction_error
            values |= {f"{PREFIX}{name}/stage-{found.stage:02d}": value for name, value in quantities.items()}
        return values


def quantity_and_stage(name: str) -> tuple[str, int] | None:
    """Return what a metric says and of which stage; None for a metric that no probe writes."""
    matched = _STAGE.fullmatch(name)
    return None if matched is None else (matched["quantity"], int(matched["stage"]))


def _named(cosine: str, ratio: str, likeness: Likeness | None) -> dict[str, float]:
    return {} if likeness is None else {cosine: likeness.cosine, ratio: likeness.ratio}

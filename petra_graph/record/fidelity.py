"""How close a stage's gradients are to the exact ones, and the names under which metrics hold these measurements.

    probe/cosine_to_delayed/stage-03                the gradient that trains stage 3, against the delayed one
    probe/ratio_to_delayed/stage-03
    probe/cosine_to_end_to_end/stage-03             the same gradient, against the end-to-end one
    probe/ratio_to_end_to_end/stage-03
    probe/delayed_cosine_to_end_to_end/stage-03     the delayed gradient, against the end-to-end one
    probe/delayed_ratio_to_end_to_end/stage-03
    probe/reconstruction_error/stage-03             of a stage that reconstructs

A cosine is <a, b> / (|a| |b|), a ratio |a| / |b| with the gradient that is named first above (PETRA appendix B). A
reconstruction's error is |x~ - x| / |x| over all inputs that the stage reconstructs, x being the input of the forward.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from attrs import frozen

_STAGE = re.compile(r"probe/(?P<quantity>\w+)/stage-(?P<stage>\d+)")


@frozen(kw_only=True)
class Similarity:
    """One gradient compared with another."""

    cosine: float
    ratio: float
    """Norm of the first over norm of the second."""


@frozen(kw_only=True)
class StageFidelity:
    """One stage at one micro-batch; None where a quantity is undefined: no parameters, or a gradient of zero."""

    stage: int
    """From 1 to J."""
    to_delayed: Similarity | None
    to_end_to_end: Similarity | None
    delayed_to_end_to_end: Similarity | None
    reconstruction_error: float | None

    def quantities(self) -> Iterator[tuple[str, float]]:
        """Yield the name and the value of each quantity that is defined."""
        for name, similarity in (
            ("{}_to_delayed", self.to_delayed),
            ("{}_to_end_to_end", self.to_end_to_end),
            ("delayed_{}_to_end_to_end", self.delayed_to_end_to_end),
        ):
            if similarity is not None:
                yield name.format("cosine"), similarity.cosine
                yield name.format("ratio"), similarity.ratio
        if self.reconstruction_error is not None:
            yield "reconstruction_error", self.reconstruction_error


@frozen(kw_only=True)
class Fidelity:
    """All stages at one micro-batch."""

    micro_batch: int
    stages: tuple[StageFidelity, ...]

    def values(self) -> Mapping[str, float]:
        """Return all measurements by the names of their metrics."""
        return {
            f"probe/{name}/stage-{stage.stage:02d}": value
            for stage in self.stages
            for name, value in stage.quantities()
        }


def quantity_and_stage(name: str) -> tuple[str, int] | None:
    """Return a metric's quantity and stage; None for a metric that no probe writes."""
    matched = _STAGE.fullmatch(name)
    return None if matched is None else (matched["quantity"], int(matched["stage"]))

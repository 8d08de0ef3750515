"""A probed micro-batch on its way through the stages: what is known of its gradients so far, and how they compare."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from attrs import define, field
from torch import Tensor

from petra_graph.blocks import Streams
from petra_graph.executor.contributions import Contributions
from petra_graph.fidelity.replay import Example, Gradient
from petra_graph.program.clock import Clock, Versions
from petra_graph.record.fidelity import Likeness, StageFidelity


@define(kw_only=True)
class Probed:
    """One micro-batch on its way through the stages."""

    micro_batch: int
    at_forward: Versions
    open: dict[Versions, list[int]]
    """The parameters still to be computed at, and of which stages those are the end-to-end ones."""
    stages: list[OfStage]
    samples: Tensor | None = None
    target: Tensor | None = None
    delayed: dict[int, Gradient] = field(factory=dict)
    end_to_end: dict[int, Gradient] = field(factory=dict)

    @property
    def example(self) -> Example | None:
        """The micro-batch, once it has reached the head."""
        if self.samples is None or self.target is None:
            return None
        return Example(micro_batch=self.micro_batch, samples=self.samples, target=self.target)

    @property
    def complete(self) -> bool:
        """Whether nothing more will come."""
        return not self.open and all(stage.passed for stage in self.stages)

    def compared(self) -> Iterator[StageFidelity]:
        """Compare the three gradients of each stage."""
        for index, stage in enumerate(self.stages):
            delayed, end_to_end = self.delayed.get(index, {}), self.end_to_end.get(index, {})
            yield StageFidelity(
                stage=index + 1,
                to_delayed=likeness(stage.own, delayed),
                to_end_to_end=likeness(stage.own, end_to_end),
                delayed_to_end_to_end=likeness(delayed, end_to_end),
                reconstruction_error=_relative(stage.errors),
            )


@define
class OfStage:
    """What one stage did with a probed micro-batch."""

    own: Contributions = field(factory=dict)
    inputs: dict[tuple[str, ...], Streams] = field(factory=dict)
    """What segments that reconstruct have read, by their nodes."""
    errors: list[tuple[Tensor, Tensor]] = field(factory=list)
    """Squared norms of a reconstruction's error, and of what it should have been."""
    passed: bool = False
    """Its backward is done."""


def likeness(one: Gradient, other: Gradient) -> Likeness | None:
    """Compare two gradients in float64; a parameter that is in neither counts as zero."""
    norms = _norm(one), _norm(other)
    if not all(0 < norm < math.inf for norm in norms):
        return None
    both = [(one[parameter].double() * other[parameter].double()).sum() for parameter in one if parameter in other]
    cosine = float(torch.stack(both).sum()) / (norms[0] * norms[1]) if both else 0.0
    return Likeness(cosine=cosine, ratio=norms[0] / norms[1])


def _norm(gradient: Gradient) -> float:
    squares = [part.double().square().sum() for part in gradient.values()]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def _relative(errors: list[tuple[Tensor, Tensor]]) -> float | None:
    if not errors:
        return None
    wrong, right = (float(torch.stack(parts).sum().sqrt()) for parts in zip(*errors, strict=True))
    return wrong / right if right else None


def probed_at(micro_batch: int, since_drain: int, clock: Clock) -> Probed:
    """Return a micro-batch that no stage has seen yet; `since_drain` counts it from the last drain."""
    at_forward = clock.at_forward(since_drain)
    stages = range(len(clock.depths))
    asked: dict[Versions, list[int]] = {at_forward: []}
    for stage in stages:
        asked.setdefault(clock.at_backward(since_drain, stage), []).append(stage)
    return Probed(micro_batch=micro_batch, at_forward=at_forward, open=asked, stages=[OfStage() for _ in stages])

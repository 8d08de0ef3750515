"""A probed micro-batch on its way through the stages: its gradients so far, and their comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from attrs import define, field
from torch import Tensor

from petra_graph.blocks import Streams
from petra_graph.executor.contributions import Contributions
from petra_graph.fidelity.replay import Example, Gradient
from petra_graph.program.clock import Clock, Versions
from petra_graph.record.fidelity import Similarity, StageFidelity


@define
class StageRecord:
    """The work of one stage on a probed micro-batch."""

    gradient: Contributions = field(factory=dict)
    """The gradient that trains the stage."""
    inputs: dict[tuple[str, ...], Streams] = field(factory=dict)
    """Inputs of the forward in segments that reconstruct, by the segment's nodes."""
    errors: list[tuple[Tensor, Tensor]] = field(factory=list)
    """Squared norms of a reconstruction's error, and of the input of the forward."""
    finished: bool = False
    """The stage's backward is done."""


@define(kw_only=True)
class ProbedMicroBatch:
    """One micro-batch on its way through the stages."""

    micro_batch: int
    at_forward: Versions
    pending: dict[Versions, list[int]]
    """The parameters at which gradients are still to be computed, and the stages of which those are the end-to-end ones."""
    stages: Sequence[StageRecord]
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
        """Whether all gradients are known."""
        return not self.pending and all(stage.finished for stage in self.stages)

    def compared(self) -> Iterator[StageFidelity]:
        """Compare the three gradients of each stage."""
        for index, stage in enumerate(self.stages):
            delayed, end_to_end = self.delayed.get(index, {}), self.end_to_end.get(index, {})
            yield StageFidelity(
                stage=index + 1,
                to_delayed=similarity(stage.gradient, delayed),
                to_end_to_end=similarity(stage.gradient, end_to_end),
                delayed_to_end_to_end=similarity(delayed, end_to_end),
                reconstruction_error=_relative(stage.errors),
            )


def probed_micro_batch(micro_batch: int, since_drain: int, clock: Clock) -> ProbedMicroBatch:
    """Return a micro-batch before its first forward; `since_drain` counts it from the last drain."""
    at_forward = clock.at_forward(since_drain)
    stages = [StageRecord() for _ in clock.depths]
    pending: dict[Versions, list[int]] = {at_forward: []}
    for stage in range(len(stages)):
        pending.setdefault(clock.at_backward(since_drain, stage), []).append(stage)
    return ProbedMicroBatch(micro_batch=micro_batch, at_forward=at_forward, pending=pending, stages=stages)


def similarity(one: Gradient, other: Gradient) -> Similarity | None:
    """Compare two gradients in float64; a parameter that is missing from one of them counts as zero there."""
    norms = _norm(one), _norm(other)
    if not all(0 < norm < math.inf for norm in norms):
        return None
    both = [(one[parameter].double() * other[parameter].double()).sum() for parameter in one if parameter in other]
    cosine = float(torch.stack(both).sum()) / (norms[0] * norms[1]) if both else 0.0
    return Similarity(cosine=cosine, ratio=norms[0] / norms[1])


def _norm(gradient: Gradient) -> float:
    squares = [part.double().square().sum() for part in gradient.values()]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def _relative(errors: Sequence[tuple[Tensor, Tensor]]) -> float | None:
    if not errors:
        return None
    error, norm = (float(torch.stack(squares).sum().sqrt()) for squares in zip(*errors, strict=True))
    return error / norm if norm else None

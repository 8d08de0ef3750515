"""When an operation may begin: in which order under the static policy, and what holds it back though its messages are there.

A request to stop holds back every stage's forward of one number, which the process of the first stage chooses. A checkpoint
holds back the first stage until all processes know of it. Replicas hold back an update until its gradients are averaged,
and one norm over all stages holds back all updates until every stage has come to its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Protocol

import torch
import torch.distributed as dist
from attrs import define
from torch import Tensor

from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.program.channels import ChannelKey
from petra_graph.program.cut import Cut
from petra_graph.program.schedule import Action
from petra_graph.runtime.control.supervisor import Supervisor
from petra_graph.runtime.replicas import Replicas
from petra_graph.runtime.scheduler.stage_at_work import OperationSeconds, StageAtWork


class CutObserver(Protocol):
    """Takes the state of every stage at some cuts (`program.cut`), while the pipeline keeps running."""

    def may_pass(self, micro_batch: int) -> bool:
        """Whether the first stage may do this forward: all processes know of every cut up to there."""
        ...

    def due(self, micro_batch: int) -> bool:
        """Whether there is a cut before this forward."""
        ...

    def reached(self, executor: StageExecutor, cut: Cut) -> None:
        """Observe that a stage has come to a cut."""
        ...

    def received(self, stage: int, key: ChannelKey, micro_batch: int, message: EncodedTensors) -> None:
        """Observe a message from a consumer, which may have been in flight at a cut that the stage has passed."""
        ...


@define
class Gate:
    """What holds the operations of a process back."""

    supervisor: Supervisor
    replicas: Replicas | None
    global_clip: bool
    """All stages are clipped by one norm."""
    cuts: CutObserver | None = None
    """Takes the state of the stages at some cuts."""
    allowed_cut: Callable[[int], int] = lambda at: at
    """Returns the first forward from one on before which the stages may stop."""
    evaluates: bool = False

    @property
    def may_hold(self) -> bool:
        """Whether anything but a request to stop can hold an operation back."""
        return self.global_clip or self.replicas is not None or self.cuts is not None

    def holds_back(self, stage: StageAtWork, action: Action) -> bool:
        """Whether an operation waits though no message is missing."""
        if action.verb == "backward":
            return False
        if action.verb == "update":
            replicas = self.replicas
            return self.global_clip or not (replicas is None or replicas.ready(stage.index))
        if self.supervisor.stop_signal is None and self.cuts is None:
            return False
        return self.halts(stage, action) or self.awaits_agreement(stage, action)

    def awaits_agreement(self, stage: StageAtWork, action: Action) -> bool:
        """Whether the first stage waits until every process knows of a cut before this forward."""
        if action.verb != "forward" or self.cuts is None or self.evaluates:
            return False
        return bool(stage.samples) and not self.cuts.may_pass(action.micro_batch)

    def halts(self, stage: StageAtWork, action: Action) -> bool:
        """Whether a stage stops before an operation, at a request."""
        supervisor, replicas = self.supervisor, self.replicas
        if action.verb != "forward" or supervisor.stop_signal is None:
            return False
        if supervisor.stop_at is None and replicas is None and stage.samples:
            ahead = 0 if self.evaluates else self.allowed_cut(action.micro_batch) - action.micro_batch
            supervisor.stop_after(stage.forwards + ahead)
        elif replicas is not None and self.evaluates:
            return False  # The other replicas are somewhere else, and cannot stop at the same place.
        return supervisor.stop_at is not None and stage.forwards >= supervisor.stop_at


class ExecutionOrder:
    """The operations of a process in the one order in which they begin."""

    def __init__(self, actions: Iterator[tuple[int, Action]], stages: Sequence[StageAtWork], gate: Gate) -> None:
        """Begin before the first operation.

        Args:
            actions: of the stages of all processes, each with its stage's index.
            stages: those of this process.
            gate: says where a stage halts, and then performs nothing more.
        """
        here, together = {stage.index: stage for stage in stages}, gate.global_clip
        self._actions = (
            (here[index], action)
            for index, action in actions
            if index in here and not (together and action.verb == "update")
        )
        self._gate = gate
        self._halted: set[int] = set()
        self._first = next(self._actions, None)

    def candidates(self) -> Sequence[StageAtWork]:
        """Return the stage whose operation begins next, if there is one."""
        while self._first is not None:
            stage, action = self._first
            if stage.index not in self._halted and not self._gate.halts(stage, action):
                return [stage]
            self._halted.add(stage.index)
            self.advance()
        return []

    def advance(self) -> None:
        self._first = next(self._actions, None)


def update_together(stages: Sequence[StageAtWork], total: int, seconds: OperationSeconds, *, alone: bool) -> None:
    """Clip this process's stages by one norm over all stages, and update them; only synchronous methods do so.

    Args:
        total: the number of stages in all processes.
        alone: this process hosts them all; then nothing is read from a device.
    """
    norm = norm_of_all(stages, total, alone=alone)
    for stage in stages:
        began, tally = time.perf_counter(), seconds.tally(stage.index, "update")
        with stage.on_device or nullcontext():
            stage.executor.update(norm)
        tally[0] += 1
        tally[1] += time.perf_counter() - began
        stage.advance()


def norm_of_all(stages: Sequence[StageAtWork], total: int, *, alone: bool) -> Tensor:
    """Return the norm of the window's mean gradient over all stages, a scalar in float64; squares are summed in their order."""
    squares = [stage.executor.updater.squared_norm() for stage in stages]
    if alone:
        device = stages[-1].device
        return torch.stack([squared.to(device, non_blocking=True) for squared in squares]).sum().sqrt()
    norms = torch.zeros(total, dtype=torch.float64)
    for stage, squared in zip(stages, squares, strict=True):
        norms[stage.index - 1] = squared
    dist.all_reduce(norms)  # every element has one addend that is not zero
    return norms.sum().sqrt()

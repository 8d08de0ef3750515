"""Copies of the whole pipeline, each on processes of its own and with its own rows of every micro-batch.

    replica 0    stage 1 --> stage 2      process 0, process 1
                    |           |         the gradients of a window, averaged where the stage steps
    replica 1    stage 1 --> stage 2      process 2, process 3

What a segment's backward has completed for a window is summed over the replicas at once, while the stage's other segments,
and the process's other stages, go on. The step waits for it, and a stage that waits holds up no other: replicas may come
to their stages' steps in different orders, which are timing's, so nobody may stand in line for anybody.

A request to stop travels with the sums of the first stage, so all replicas hear of it at the same step.

Where batch normalisation is synchronised (`partition.sync_batch_norm`), forwards and backwards exchange statistics too, and
wait for them. Stages of one process then take turns in an order that all replicas share (`program.static_order`): if each took
whatever was ready, two processes could wait for each other in two stages.

Decision: every stage has a process group of its own, in which the order of sums is the stage's own. All replicas hold the
same bits after every step: a sum is computed once and handed to all. Which bits they are depends on the number of
replicas, as rounding does, and on nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import reduce

import torch
import torch.distributed as dist
from attrs import define, evolve, field, frozen
from torch import Tensor

from petra_graph.blocks import Reversed
from petra_graph.executor.observer import StageObserver
from petra_graph.executor.stage import StageExecutor
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.stage_program import Segment
from petra_graph.runtime.control.watchdog import Watchdog
from petra_graph.runtime.control.world import NEVER
from petra_graph.runtime.data_parallel.batch_norm import synchronise

_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 45.0
"""Longer than the watchdog takes to miss a process of another machine."""


class Replicas:
    """What connects the stages of one process with those of its like in the other replicas."""

    def __init__(
        self, executors: Sequence[StageExecutor], peers: Sequence[int], watchdog: Watchdog, *, synchronised: bool
    ) -> None:
        """Build the groups; all replicas do so at the same time.

        Args:
            executors: of this process.
            peers: the ranks that host the same stages, this one among them, in the order of replicas.
            watchdog: knows of requests to stop; its waker rings when a sum is there.
            synchronised: whether batch normalisation uses the statistics of all replicas' rows.
        """
        self.peers = peers
        self.synchronised = synchronised
        self._executors = executors
        self._stages: dict[int, _Reducing] = {}
        for executor in executors:
            group = dist.new_group(list(peers), timeout=NEVER, use_local_synchronization=True)
            assert isinstance(group, dist.ProcessGroup)
            stage = _Reducing(executor, group, peers, watchdog)
            executor.watch(stage)
            self._stages[executor.program.index] = stage
            if synchronised:
                exchange = _Exchange(executor.program.index, group, peers, watchdog)
                synchronise(executor.modules.values(), exchange)

    def begin(self, micro_batches: range) -> None:
        """Get ready for an epoch."""
        for stage in self._stages.values():
            stage.micro_batches = micro_batches

    def ready(self, stage: int) -> bool:
        """Whether a stage's sums are there, so that its update would not wait."""
        return all(sums.there for sums in self._stages[stage].pending)

    def asked(self, stage: int) -> bool:
        """Whether somebody had asked to stop when a stage's latest sums began; all replicas get the same answer."""
        return self._stages[stage].asked

    @torch.no_grad()
    def average_statistics(self) -> None:
        """Make running statistics those of all replicas: their means, as nobody is between two micro-batches."""
        for executor in self._executors:
            stage = self._stages[executor.program.index]
            for module in executor.modules.values():
                for buffer in module.buffers():
                    if buffer.is_floating_point():
                        name = f"the running statistics of stage {executor.program.index}"
                        with _answers(self.peers, stage.watchdog, name):
                            dist.all_reduce(buffer, group=stage.group)
                        buffer.div_(len(self.peers))


@frozen
class _Exchange:
    """Hands statistics of one stage to its like in all replicas, and waits for theirs."""

    stage: int
    group: dist.ProcessGroup
    peers: Sequence[int]
    watchdog: Watchdog

    @property
    def size(self) -> int:
        """How many replicas there are."""
        return len(self.peers)

    def __call__(self, own: Tensor) -> Tensor:
        """Return the numbers of all replicas."""
        found = own.new_empty(self.size, len(own))
        with self._told(), _answers(self.peers, self.watchdog, f"the statistics of stage {self.stage}"):
            dist.all_gather(list(found.unbind()), own, group=self.group)
        return found

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say meanwhile that this process waits: it may be another's fault that it takes so long."""
        doing, began = self.watchdog.status, time.monotonic()
        if doing is None:
            yield
            return
        what, others = "the statistics of other replicas", _without_own(self.peers)
        self.watchdog.status = evolve(doing, channel=what, waits_for=others, since=began)
        yield
        # The time that an operation takes is its own, without that of others.
        self.watchdog.status = evolve(doing, since=doing.since + time.monotonic() - began)


@define(eq=False)
class _Sums:
    """One segment's gradients on their way through all replicas."""

    gradients: Sequence[Tensor]
    flat: Tensor
    work: dist.Work
    carries_request: bool
    """Whether the last element says if somebody asked to stop."""
    there: bool = False


@define(eq=False)
class _Reducing(StageObserver):
    """Looks on at one stage, and sums what it completes."""

    executor: StageExecutor
    group: dist.ProcessGroup
    peers: Sequence[int]
    watchdog: Watchdog
    micro_batches: range = range(0)
    pending: list[_Sums] = field(factory=list)
    asked: bool = False

    def left(self, micro_batch: int, segment: Segment, found: Reversed) -> None:
        """Begin to sum a segment's gradients, where this was the window's last backward."""
        done = micro_batch - self.micro_batches.start + 1
        if done % self.executor.program.accumulation and done < len(self.micro_batches):
            return
        parameters = [p for name in segment.nodes for p in self.executor.modules[name].parameters()]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        parts = [gradient.detach().reshape(-1) for gradient in gradients]
        dtype = reduce(torch.promote_types, [part.dtype for part in parts]) if parts else torch.float32
        carries_request = any(entry.edge.producer == INPUT for entry in segment.inputs)
        if carries_request:
            parts.append(torch.full((1,), float(self.watchdog.asked is not None), device=self.executor.program.device))
        if not parts:
            return
        flat = torch.cat([part.to(dtype) for part in parts])
        work = dist.all_reduce(flat, group=self.group, async_op=True)
        assert work is not None
        sums = _Sums(gradients, flat, work, carries_request)
        self.pending.append(sums)
        work.get_future().add_done_callback(lambda _: self._there(sums))

    def _there(self, sums: _Sums) -> None:
        sums.there = True
        self.watchdog.waker.wake()

    def update(self) -> AbstractContextManager[None]:
        """Put the means in the gradients' place; the sums are there."""
        return self._averaged()

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        for sums in self.pending:
            assert sums.there
            with _answers(self.peers, self.watchdog, f"the gradients of stage {self.executor.program.index}"):
                sums.work.wait()  # It is there, or raises what went wrong.
            if sums.carries_request:
                self.asked = bool(sums.flat[-1] > 0)
            sums.flat.div_(len(self.peers))
            end = 0
            for gradient in sums.gradients:
                begin, end = end, end + gradient.numel()
                gradient.copy_(sums.flat[begin:end].view(gradient.shape))
        self.pending.clear()
        yield


@contextmanager
def _answers(peers: Sequence[int], watchdog: Watchdog, what: str) -> Iterator[None]:
    """Where another replica does not answer any more, wait for the watchdog: it will know which, and why.

    Raises:
        Failed: it knows.
        RuntimeError: what torch raised, for which no other process was to blame.
    """
    try:
        yield
    except RuntimeError as error:
        others, end = _without_own(peers), time.monotonic() + _PATIENCE_SECONDS
        if len(others) == 1:
            watchdog.lost(what, others[0], error)
        while time.monotonic() < end:
            watchdog.check()
            time.sleep(_LOOK_SECONDS)
        raise


def _without_own(peers: Sequence[int]) -> tuple[int, ...]:
    return tuple(peer for peer in peers if peer != dist.get_rank())


def pipeline_of(rank: int, stages: Sequence[int], replicas: int, size: int) -> tuple[int, tuple[int, ...]]:
    """Return a rank's replica, and the ranks of that replica's stages.

    Args:
        rank: of a process.
        stages: the process of each stage within its pipeline.
        replicas: how many pipelines there are.
        size: how many processes there are in all.
    """
    each = size // replicas
    replica = rank // each
    return replica, tuple(replica * each + process for process in stages)


def data_parallel_ranks(rank: int, replicas: int, size: int) -> tuple[int, ...]:
    """Return the ranks that host the same stages as one, in the order of replicas."""
    each = size // replicas
    return tuple(rank % each + replica * each for replica in range(replicas))

"""Data parallelism: replicas of the whole pipeline, each on its own processes, with its own rows of a micro-batch.

    replica 0    stage 1 --> stage 2      process 0, process 1
                    |           |         the gradients of a window, averaged where the stage steps
    replica 1    stage 1 --> stage 2      process 2, process 3

When a segment's backward completes a window's gradients, their all-reduce over the replicas starts at once, while the
stage's other segments and the process's other stages go on. The stage's step waits for the all-reduce, and delays no
other stage: replicas reach the steps of their stages in different orders, which timing decides, so no step may wait for
the step of another stage.

A request to stop travels with the gradients of the first stage, so all replicas learn of it at the same step.

Decision: every stage has its own process group, in which its own order of operations orders the all-reduces. All
replicas hold the same bits after every step, since each sum is computed once. The bits depend on the number of
replicas, as rounding does, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, reduce
from typing import NamedTuple

import torch
import torch.distributed as dist
from attrs import define, field
from torch import Tensor, nn

from petra_graph.blocks import Streams
from petra_graph.executor.stage import StageExecutor, StageObserver
from petra_graph.graph.node_graph import INPUT
from petra_graph.plugins.tensor_trees import Tree
from petra_graph.program.stage_program import Segment
from petra_graph.runtime.watchdog import Watchdog
from petra_graph.runtime.world import NEVER


class Replicas:
    """Connects the stages of one process with the same stages of the other replicas."""

    def __init__(self, executors: Sequence[StageExecutor], peers: Sequence[int], watchdog: Watchdog) -> None:
        """Build the groups; all replicas do so at the same time. `peers` are the ranks that host the same stages, this one among them."""
        self._stages: dict[int, _StageReducer] = {}
        for executor in executors:
            group = dist.new_group(list(peers), timeout=NEVER, use_local_synchronization=True)
            assert isinstance(group, dist.ProcessGroup)
            stage = self._stages[executor.program.index] = _StageReducer(executor, group, peers, watchdog)
            executor.observe(stage)

    def begin(self, micro_batches: range) -> None:
        for stage in self._stages.values():
            stage.micro_batches = micro_batches

    def ready(self, stage: int) -> bool:
        """Whether a stage's all-reduces are done, so that its update would not wait."""
        return all(sums.work.get_future().done() for sums in self._stages[stage].pending)

    @torch.no_grad()
    def average_statistics(self) -> None:
        """Replace running statistics by their means over the replicas, at a drain."""
        for stage in self._stages.values():
            for module in stage.executor.modules.values():
                for buffer in module.buffers():
                    if buffer.is_floating_point():
                        with stage.answered("the running statistics"):
                            dist.all_reduce(buffer, group=stage.group)
                        buffer.div_(len(stage.peers))


class _GradientSum(NamedTuple):
    """The all-reduce of one segment's gradients, in a layout that is the same in every replica.

    gradient of each parameter, zeros where this replica has none | for each, whether it has one | weight | a request to stop
    """

    parameters: Sequence[nn.Parameter]
    flat: Tensor
    work: dist.Work
    carries_request: bool
    """Whether the last element says that a request to stop has come: so with the gradients of the segment that reads samples."""


@define(eq=False)
class _StageReducer(StageObserver):
    """Observes one stage, and reduces the gradients that it completes."""

    executor: StageExecutor
    group: dist.ProcessGroup
    peers: Sequence[int]
    watchdog: Watchdog
    micro_batches: range = range(0)
    pending: list[_GradientSum] = field(factory=list)
    forwards: int = 0
    """In trainings, since this process's start."""

    @cached_property
    def _completed_by(self) -> Mapping[str, Sequence[nn.Parameter]]:
        """The parameters whose gradients each segment completes, by its first node; of those that segments share, the first one, whose backward is the last."""
        known: set[nn.Parameter] = set()
        found = {}
        for segment in self.executor.program.segments:
            modules = (self.executor.modules[name] for name in segment.nodes)
            own = dict.fromkeys(one for module in modules for one in module.parameters() if one.requires_grad)
            found[segment.nodes[0]] = [one for one in own if one not in known]
            known.update(own)
        return found

    def forward(self, micro_batch: int, target: Tree | None) -> AbstractContextManager[None]:
        self.forwards += 1
        return nullcontext()

    def segment_backward(self, micro_batch: int, segment: Segment, inputs: Streams) -> None:
        """Start the all-reduce of a segment's gradients, where this was the window's last backward."""
        done = micro_batch - self.micro_batches.start + 1
        if done % self.executor.program.accumulation and done < len(self.micro_batches):
            return
        parameters = self._completed_by[segment.nodes[0]]
        facts = [float(one.grad is not None) for one in parameters]
        if parameters:
            facts.append(self.executor.updater.weight)  # of this replica's window
        carries_request = any(entry.edge.producer == INPUT for entry in segment.inputs)
        if carries_request:
            facts.append(float(self.watchdog.stop_signal is not None))
        if not facts:
            return
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad.detach() for one in parameters]
        dtype = reduce(torch.promote_types, [one.dtype for one in gradients]) if parameters else torch.float32
        parts = [*gradients, torch.tensor(facts, dtype=dtype, device=self.executor.program.device)]
        flat = torch.cat([part.reshape(-1).to(dtype) for part in parts])
        work = dist.all_reduce(flat, group=self.group, async_op=True)
        assert work is not None
        self.pending.append(_GradientSum(parameters, flat, work, carries_request))
        work.get_future().add_done_callback(lambda _: self.watchdog.waker.wake())

    @contextmanager
    def update(self) -> Iterator[None]:
        """Replace the gradients by their means; the all-reduces are done."""
        for parameters, flat, work, carries_request in self.pending:
            assert work.get_future().done()
            with self.answered("the gradients"):
                work.wait()  # Returns at once, or raises what went wrong.
            if carries_request and flat[-1] > 0:
                self.watchdog.stop_after(self.forwards)
            if not parameters:
                continue
            sizes = [one.numel() for one in parameters]
            *means, facts = torch.split(flat.div_(len(self.peers)), [*sizes, len(flat) - sum(sizes)])
            *anywhere, self.executor.updater.weight = facts[: len(sizes) + 1].tolist()
            for parameter, mean, has_gradient in zip(parameters, means, anywhere, strict=True):
                if not has_gradient:  # no replica used it: the optimizer passes over it, as in one pipeline
                    continue
                if parameter.grad is None:
                    parameter.grad = torch.empty_like(parameter)
                parameter.grad.copy_(mean.view(parameter.shape))
        self.pending.clear()
        yield

    def answered(self, what: str) -> AbstractContextManager[None]:
        """Return a context in which the other replicas are to answer."""
        return self.watchdog.answered(f"{what} of stage {self.executor.program.index}", self.peers)

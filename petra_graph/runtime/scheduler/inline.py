"""All stages in one process, on any mix of devices.

Every stage follows its own order of operations; each pass over the stages lets every one do its next operation if what
it needs has arrived. Any such interleaving gives the same numbers, since no stage ever sees another but through its
channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.executor.segment_runners import HeadResult
from petra_graph.executor.stage import BackwardMessage, StageExecutor
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.schedule import Action
from petra_graph.program.stage_program import Edge
from petra_graph.runtime.scheduler.stage_cursor import StageCursor, cursor_of, with_error_context
from petra_graph.runtime.transport.local import LocalChannel, moved, moved_back

Observer = Callable[[HeadResult], None]
MicroBatch = tuple[Tensor, Tensor]
"""Samples [n, *shape] and targets [n], on the CPU."""


class InlineRuntime:
    """Runs executors in one process."""

    def __init__(self, executors: Sequence[StageExecutor], *, global_clip: bool = False) -> None:
        self.executors = executors
        self._devices = [torch.device(executor.program.device) for executor in executors]
        self._forward = {
            edge: LocalChannel[EncodedTensors]() for executor in executors for edge in executor.program.receives
        }
        self._backward = {edge: LocalChannel[BackwardMessage]() for edge in self._forward if edge.producer != INPUT}
        self._targets = LocalChannel[Tensor]()
        self._source = next(edge for edge in self._forward if edge.producer == INPUT)
        self._global_clip = global_clip

    def train(self, data: Iterable[MicroBatch], micro_batches: range, observe: Observer) -> None:
        """Train on `micro_batches`, and drain.

        Args:
            data: the micro-batches in order; at least as many as asked for.
            micro_batches: their numbers, counted from the run's start.
            observe: called with the head's result of each micro-batch, before its backward; what it raises ends the
                training between two operations.
        """
        source = iter(data)
        turns = [cursor_of(executor, micro_batches) for executor in self.executors]
        while any(turn.next for turn in turns):
            progressed = False
            for turn in reversed(turns):
                if turn.next is not None and self._ready(turn.next, turn.executor):
                    doing = f"{turn.next.verb} of micro-batch {turn.next.micro_batch}"
                    with with_error_context(turn.executor, doing):
                        self._perform(turn, turn.next, source, observe)
                    turn.advance()
                    progressed = True
            if self._global_clip and all(turn.next and turn.next.verb == "update" for turn in turns):
                self._update_together()
                for turn in turns:
                    turn.advance()
                progressed = True
            if not progressed:
                waiting = ", ".join(f"stage {turn.executor.program.index}: {turn.next}" for turn in turns if turn.next)
                message = f"no stage can go on; this is a bug in the schedule ({waiting})"
                raise RuntimeError(message)

    def evaluate(self, data: Iterable[MicroBatch]) -> Iterator[HeadResult]:
        """Evaluate batches of any size with running statistics; yield the head's result of each."""
        for executor in self.executors:
            executor.set_training(False)
        try:
            for batch in data:
                yield self._evaluate(batch)
        finally:
            for executor in self.executors:
                executor.set_training(True)

    def _evaluate(self, batch: MicroBatch) -> HeadResult:
        samples, targets = batch
        edges: dict[Edge, EncodedTensors] = {self._source: (samples,)}
        result = None
        for executor, device in zip(self.executors, self._devices, strict=True):
            received = {edge: moved(edges.pop(edge), device) for edge in executor.program.receives}
            target = targets.to(device) if executor.program.holds_head else None
            with with_error_context(executor, "evaluation"):
                done = executor.evaluate(received, target)
            edges.update(done.sent)
            result = done.result or result
        assert result is not None
        return result

    def _ready(self, action: Action, executor: StageExecutor) -> bool:
        program = executor.program
        match action.verb:
            case "forward":
                return all(edge == self._source or self._forward[edge].ready() for edge in program.receives)
            case "backward":
                return all(self._backward[edge].ready() for edge in program.sends)
            case "update":
                return not self._global_clip

    def _perform(self, turn: StageCursor, action: Action, source: Iterator[MicroBatch], observe: Observer) -> None:
        executor, device = turn.executor, turn.device
        match action.verb:
            case "forward":
                if self._source in executor.program.receives:
                    samples, targets = next(source)
                    self._forward[self._source].send((samples,))
                    self._targets.send(targets)
                received = {edge: moved(self._forward[edge].receive(), device) for edge in executor.program.receives}
                target = self._targets.receive().to(device) if executor.program.holds_head else None
                done = executor.forward(action.micro_batch, received, target)
                for edge, streams in done.sent.items():
                    self._forward[edge].send(streams)
                if done.result is not None:
                    observe(done.result)
            case "backward":
                messages = {edge: moved_back(self._backward[edge].receive(), device) for edge in executor.program.sends}
                for edge, message in executor.backward(action.micro_batch, messages).items():
                    self._backward[edge].send(message)
            case "update":
                executor.update()

    def _update_together(self) -> None:
        """Clip by one norm over all stages; only synchronous methods come here."""
        norm = torch.stack([executor.updater.squared_norm() for executor in self.executors]).sum().sqrt()
        for executor in self.executors:
            executor.update(norm)

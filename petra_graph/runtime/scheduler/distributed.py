"""Some of the stages, in one process of several.

Every process lets its stages follow their own orders, as the inline runtime does: the stage nearest to the head goes
first, an operation begins when what it needs has arrived and what it sends has room, and where none can begin the
process sleeps. Nothing but channels connects stages, so processes and their timing change no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from attrs import frozen

from petra_graph.errors import Interrupted
from petra_graph.executor.segment_runners import HeadResult
from petra_graph.executor.stage import StageExecutor
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import ChannelKey, Direction
from petra_graph.program.schedule import Action
from petra_graph.program.stage_program import Edge
from petra_graph.program.static_order import sequence
from petra_graph.runtime.control.status_reporter import StatusReporter
from petra_graph.runtime.control.watchdog import Watchdog
from petra_graph.runtime.data_parallel.replicas import Replicas
from petra_graph.runtime.scheduler.inline import MicroBatch, Observer
from petra_graph.runtime.scheduler.operations import Operations, reads_samples
from petra_graph.runtime.scheduler.stage_cursor import ExecutionOrder, StageCursor, cursor_of, with_error_context
from petra_graph.runtime.transport.process_channels import ChannelTable, ProcessChannels


class Batches(Protocol):
    """Evaluation batches whose sizes are known before they are loaded."""

    @property
    def sizes(self) -> Sequence[int]:
        """Samples of each."""
        ...

    def __iter__(self) -> Iterator[MicroBatch]:
        """Load one after another."""
        ...


@frozen(kw_only=True)
class ProcessContext:
    """What a process of a distributed run works with beside its stages."""

    rank: int
    size: int
    wiring: ChannelTable
    links: ProcessChannels
    watchdog: Watchdog
    global_clip: bool = False
    replicas: Replicas | None = None


class DistributedRuntime:
    """Runs this process's executors beside those of others."""

    def __init__(self, executors: Sequence[StageExecutor], crew: ProcessContext) -> None:
        self.executors = executors
        self._crew = crew
        self._links, self._watchdog = crew.links, crew.watchdog
        self._telling = StatusReporter(crew.watchdog, crew.links, crew.rank)
        self._operations = Operations(executors, crew.links, crew.wiring.entries)
        self._forwards = dict.fromkeys((executor.program.index for executor in executors), 0)
        """Of each stage since the run's start, what `Watchdog.stop_at` counts: evaluations too, where there are no replicas."""
        self._line: ExecutionOrder | None = None
        """Where the stages of this process may not do whatever is ready."""

    def train(self, data: Iterable[MicroBatch], micro_batches: range, observe: Observer) -> None:
        """Train on `micro_batches`, and drain; as `InlineRuntime.train`.

        Args:
            data: what the stages of this process read: samples for the first, targets for the last.
            micro_batches: their numbers, counted from the run's start.
            observe: called in the process that hosts the head.

        Raises:
            Interrupted: somebody asked to stop; all processes have stopped at the same micro-batch.
            Failed: the run has failed elsewhere.
            RunFailed: it fails here.
        """
        source = iter(data)
        self._telling.micro_batches = micro_batches
        self._links.begin_training([self._crew.wiring.batch] * len(micro_batches))
        turns = [cursor_of(executor, micro_batches) for executor in self.executors]
        replicas = self._crew.replicas
        if replicas is not None:
            replicas.begin(micro_batches)
            self._line = self._lined_up(turns, micro_batches) if replicas.synchronised else None

        def perform(turn: StageCursor, action: Action) -> None:
            match action.verb:
                case "forward":
                    result = self._operations.forward(turn, action.micro_batch, source)
                    self._forwards[turn.executor.program.index] += 1
                    if result is not None:
                        observe(result)
                case "backward":
                    self._operations.backward(turn, action.micro_batch)
                case "update":
                    turn.executor.update()
                    if replicas is not None and replicas.asked(turn.executor.program.index):
                        self._watchdog.stop_after(self._forwards[turn.executor.program.index])

        for _ in self._passes(turns, perform):
            pass
        self._line = None
        if replicas is not None:
            last = Action("update", micro_batches[-1])
            self._telling.waits(turns[-1], last, "the running statistics of other replicas", replicas.peers)
            replicas.average_statistics()
        self._telling.stops()

    def evaluate(self, data: Batches) -> Iterator[HeadResult]:
        """Evaluate batches of any size with running statistics; yield results where the head is.

        Raises:
            Interrupted, Failed, RunFailed: as `train`.
        """
        source, sizes = iter(data), data.sizes
        self._links.begin_evaluation(sizes)
        results: list[HeadResult] = []
        batches = range(len(sizes))
        turns = [
            StageCursor(
                executor, torch.device(executor.program.device), (Action("forward", batch) for batch in batches)
            )
            for executor in self.executors
        ]

        def eval_step(turn: StageCursor, _: Action) -> None:
            result = self._operations.eval_step(turn, source)
            self._forwards[turn.executor.program.index] += self._crew.replicas is None
            if result is not None:
                results.append(result)

        self._telling.evaluates, self._telling.micro_batches = True, batches
        for turn in turns:
            turn.advance()
            turn.executor.set_training(False)
        try:
            for _ in self._passes(turns, eval_step):
                yield from results
                results.clear()
            yield from results
        finally:
            self._telling.evaluates = False
            self._telling.stops()
            for executor in self.executors:
                executor.set_training(True)

    # --- the order of things ------------------------------------------------------------------------------------------

    def _passes(self, turns: Sequence[StageCursor], perform: Callable[[StageCursor, Action], None]) -> Iterator[None]:
        """Let every stage do all that it has to; yield after each pass in which something was done."""
        while True:
            self._watchdog.check()
            progressed = False
            for turn in reversed(turns):
                action = turn.next
                if action is None or self._held_back(turn, action) or self._awaited(turn, action):
                    continue
                with with_error_context(turn.executor, self._telling.works(turn, action)):
                    perform(turn, action)
                turn.advance()
                if self._line is not None:
                    self._line.advance()
                progressed = True
            open_turns = [(turn, turn.next) for turn in turns if turn.next is not None]
            if all(self._halts(turn, action) for turn, action in open_turns):
                if open_turns:
                    raise Interrupted(self._watchdog.asked or "SIGINT")
                return
            if self._crew.global_clip and all(action.verb == "update" for _, action in open_turns):
                self._telling.waits(*open_turns[-1], "the norm of all stages", range(self._crew.size))
                self._update_together(turns)
            elif progressed:
                yield
            else:
                self._sleep(open_turns)

    def _held_back(self, turn: StageCursor, action: Action) -> bool:
        """Whether a stage waits though no message is missing: for its turn, others' gradients, or since the run stops."""
        if self._line is not None and self._line.first() != (turn.executor.program.index, action):
            return True
        if action.verb == "update":
            replicas = self._crew.replicas
            summed = replicas is None or replicas.ready(turn.executor.program.index)
            return self._crew.global_clip or not summed
        return self._halts(turn, action)

    def _lined_up(self, turns: Sequence[StageCursor], micro_batches: range) -> ExecutionOrder:
        """Let this process's stages go in an order that is the same in all replicas, as they wait for one another."""
        own = {turn.executor.program.index: turn for turn in turns}
        actions = (pair for pair in sequence(self._crew.wiring.programs, micro_batches) if pair[0] in own)
        return ExecutionOrder(actions, lambda stage, action: self._halts(own[stage], action))

    def _halts(self, turn: StageCursor, action: Action) -> bool:
        """Whether a stage stops before an operation, since somebody asked for it."""
        if action.verb != "forward" or self._watchdog.asked is None:
            return False
        program, replicas = turn.executor.program, self._crew.replicas
        forwards = self._forwards[program.index]
        if self._watchdog.stop_at is None and replicas is None and reads_samples(program):
            self._watchdog.stop_after(forwards)
        elif replicas is not None and self._telling.evaluates:
            return False  # The other replicas are somewhere else, and cannot stop at the same place.
        return self._watchdog.stop_at is not None and forwards >= self._watchdog.stop_at

    def _awaited(self, turn: StageCursor, action: Action) -> list[ChannelKey]:
        """Return the channels on which an operation has to wait."""
        program = turn.executor.program
        match action.verb:
            case "forward":
                read, written = _channels("forward", program.receives, program.sends)
            case "backward":
                read, written = _channels("backward", program.sends, program.receives)
            case "update":
                return []
        waits = [channel for channel in read if not self._links.receivers[channel].ready()]
        return waits + [channel for channel in written if not self._links.senders[channel].has_room()]

    def _sleep(self, open_turns: Sequence[tuple[StageCursor, Action]]) -> None:
        """Sleep until one of these stages can go on."""
        awaited = [(*pair, self._awaited(*pair)) for pair in open_turns if not self._held_back(*pair)]
        summed = next((pair for pair in open_turns if pair[1].verb == "update"), None)
        if awaited and all(channels for *_, channels in awaited):
            self._telling.waits_for_messages(awaited)
        elif not awaited and summed is not None and self._crew.replicas is not None:
            self._telling.waits(*summed, "the gradients of other replicas", self._crew.replicas.peers)
        else:
            return  # A message, or a request to stop, came while the others were asked.
        self._watchdog.waker.wait()

    def _update_together(self, turns: Sequence[StageCursor]) -> None:
        """Clip by one norm over all stages, summed in their order; only synchronous methods come here."""
        norms = torch.zeros(len(self._crew.wiring.programs), dtype=torch.float64)
        for executor in self.executors:
            norms[executor.program.index - 1] = executor.updater.squared_norm()
        dist.all_reduce(norms)  # every element has one addend that is not zero
        norm = norms.sum().sqrt()
        for turn in turns:
            turn.executor.update(norm)
            turn.advance()


def _channels(direction: Direction, *sides: Sequence[Edge]) -> list[list[ChannelKey]]:
    return [[ChannelKey(edge, direction) for edge in edges if edge.producer != INPUT] for edges in sides]

"""One process at work: its stages, each in its own order of operations, over the channels of the program.

    program --> operations of the stages that this process hosts --> channels to other stages, wherever they are

One process or many run the same scheduler: a process that hosts all stages has local channels alone. Nothing but
channels connects stages, so processes, their timing and the policy change no bit of what is computed.

    policy     an operation begins                                                      for
    arrival    when its messages and its room are there, nearest to the head first      processors
    static     in one order, a pure function of the program (`program.schedule`)    devices that queue work, and
                                                                                        replicas that wait for each other

Where no operation can begin, the process sleeps until a message, room, or a request comes.

Decision: not torch.distributed.pipelining. Its schedules flush the pipeline at every step and its stages run
autograd, whereas here stages update without a flush and reconstruct their inputs.

Decision: the stages of a device share one stream. Torch's allocator gives memory that a stream has freed to that stream alone, so with a stream
each, a device would hold the sum of its stages' peaks, up to twice what it holds when they take turns (`compiler/memory/README.md`).

Decision: CUDA graphs hold what segments compute, and no more (`executor.recorded_operations`, `run.cuda_graphs`): FIFOs, channels, older
parameters, weights of targets and updates move from one micro-batch to the next, and are the host's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from operator import call
from typing import Protocol

import torch
from attrs import evolve

from petra_graph.errors import Interrupted
from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.executor.reconstruct_recompute_stash import HeadResult
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.program.channels import ChannelKey
from petra_graph.program.cut import Cut
from petra_graph.program.schedule import Action, Verb, static_evaluation_order, static_order
from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.scheduler.global_norm import norm_of_all
from petra_graph.runtime.scheduler.operation_seconds import OperationSeconds
from petra_graph.runtime.scheduler.process_context import CutObserver, ProcessContext
from petra_graph.runtime.scheduler.stage_cursor import (
    ExecutionOrder,
    StageCursor,
    evaluation_cursor,
    named_failure,
    training_cursor,
)
from petra_graph.runtime.scheduler.stage_operations import MicroBatch, StageOperations, reads_samples
from petra_graph.runtime.scheduler.status_reporter import StatusReporter
from petra_graph.runtime.transport.process_channels import ProcessChannels, local_channels

Observer = Callable[[HeadResult], None]
_Perform = Callable[[StageCursor, int], None]


class Batches(Protocol):
    """Evaluation batches whose sizes are known before they are loaded."""

    @property
    def sizes(self) -> Sequence[int]:
        """Samples of each batch."""
        ...

    def __iter__(self) -> Iterator[MicroBatch]: ...


class Scheduler:
    """Runs the executors of this process."""

    def __init__(
        self,
        executors: Sequence[StageExecutor],
        channels: ProcessChannels | None = None,
        context: ProcessContext | None = None,
    ) -> None:
        """Connect executors to channels.

        Args:
            executors: of the stages that this process hosts, in the order of stages.
            channels: the ends that this process holds; None: it hosts all stages.
            context: the rest of the run; None: there is none.
        """
        self.executors = executors
        self._context = context or ProcessContext()
        self._supervisor = self._context.supervisor
        self._channels = channels or local_channels([executor.program for executor in executors])
        self._status = StatusReporter(self._supervisor, self._channels, self._context.rank)
        self._operations = StageOperations(executors, self._channels)
        self.seconds = OperationSeconds()
        """Since this process's start."""
        self.cuts: CutObserver | None = None
        """Takes the state of the stages at some cuts."""
        self.allowed_cut: Callable[[int], int] = lambda at: at
        """Returns the first forward from one on before which the stages may stop."""
        self.halted: Cut | None = None
        """Where all stages stopped at a request, in training."""
        self._forwards = dict.fromkeys((executor.program.index for executor in executors), 0)
        """Forwards of each stage since this process's start: what `stop_at` counts; evaluations count too, but with replicas."""

    @property
    def _programs(self) -> Sequence[StageProgram]:
        return self._channels.programs

    def train(
        self,
        data: Iterable[MicroBatch],
        micro_batches: range,
        observe: Observer,
        at: int | None = None,
        filled: int = 0,
    ) -> None:
        """Train on `micro_batches`, and drain.

        Args:
            data: what the stages of this process read: samples for the first, targets for the last.
            micro_batches: their numbers, counted from the run's start.
            observe: called in the process that hosts the head, with the head's result of each micro-batch, before its
                backward; what it raises ends the training between two operations.
            at: continue from the cut before this forward, with the messages in flight of `put_back`; None: from the start.
            filled: the pipeline fills again before this forward, or did so before the cut.

        Raises:
            Interrupted: a request to stop came; all stages have stopped before the same forward.
            Failed: the run has failed elsewhere.
            RunFailed: it fails here.
        """
        source, replicas = iter(data), self._context.replicas
        cut = Cut(micro_batches=micro_batches, at=micro_batches.start if at is None else at, filled=filled)
        self._status.begin(micro_batches, filled)
        self._channels.begin_training(cut)
        self._operations.observe_message = None if self.cuts is None else self.cuts.received
        if replicas is not None:
            replicas.begin(micro_batches)
        cursors = [training_cursor(executor, cut) for executor in self.executors]
        for executor in self.executors:
            executor.updater.filled(filled)

        perform = self._training(cut, source, observe)
        try:
            # A stage's backward is short: to hand it to autograd's thread of the GPU, and to wait for that, takes longer than to queue its kernels.
            with torch.autograd.set_multithreading_enabled(False):
                for _ in self._passes(cursors, perform, self._in_order(cursors, self._behind(cut))):
                    pass
        except Interrupted:
            stopped = next(cursor.next for cursor in cursors if cursor.next is not None)
            self.halted = evolve(cut, at=stopped.micro_batch)
            self._status.ends()
            raise
        self._drained(cursors[-1], Action("update", micro_batches.stop - 1))
        self._status.ends()

    def _training(self, cut: Cut, source: Iterator[MicroBatch], observe: Observer) -> Mapping[Verb, _Perform]:
        """Return what a stage does in each operation of a training."""
        replicas = self._context.replicas

        def forward(cursor: StageCursor, micro_batch: int) -> None:
            if self.cuts is not None and self.cuts.due(micro_batch):
                self.cuts.reached(cursor.executor, evolve(cut, at=micro_batch))
            result = self._operations.forward(cursor, micro_batch, source)
            self._forwards[cursor.index] += 1
            if result is not None:
                observe(result)

        def backward(cursor: StageCursor, micro_batch: int) -> None:
            self._operations.backward(cursor, micro_batch)
            executor = cursor.executor
            # Half as often as the head's loss is read, which says more of the same failure.
            if executor.reads_later and (micro_batch + 1) % (2 * executor.read_interval) == 0:
                executor.check()

        def update(cursor: StageCursor, _: int) -> None:
            cursor.executor.update()
            if replicas is not None and replicas.stop_requested(cursor.index):
                self._supervisor.stop_after(self._forwards[cursor.index])

        return {"forward": forward, "backward": backward, "update": update}

    def _drained(self, cursor: StageCursor, last: Action) -> None:
        """Read what waits to be read, and give all replicas the same running statistics."""
        for executor in self.executors:
            executor.check()
        if (replicas := self._context.replicas) is not None:
            self._status.waits(cursor, last, "the running statistics of other replicas", replicas.peers)
            replicas.average_statistics()

    def _behind(self, cut: Cut) -> Iterator[tuple[int, Action]]:
        """Yield the operations of all stages behind a cut in their one order."""
        programs = {program.index: program for program in self._programs}
        for stage, action in static_order(self._programs, cut.micro_batches, cut.filled):
            if not cut.precedes(programs[stage], action):
                yield stage, action

    def evaluate(self, data: Batches) -> Iterator[HeadResult]:
        """Evaluate batches of any size with running statistics; yield results where the head is.

        Raises:
            Interrupted, Failed, RunFailed: as `train`.
        """
        source, sizes = iter(data), data.sizes
        batches = range(len(sizes))
        self._channels.begin_evaluation(sizes)
        results: list[HeadResult] = []
        cursors = [evaluation_cursor(executor, batches) for executor in self.executors]

        def perform(cursor: StageCursor, _: int) -> None:
            result = self._operations.eval_step(cursor, source)
            self._forwards[cursor.index] += self._context.replicas is None
            if result is not None:
                results.append(result)

        self._status.begin(batches, evaluates=True)
        for executor in self.executors:
            executor.set_training(False)
        try:
            order = self._in_order(cursors, static_evaluation_order(self._programs, batches))
            for _ in self._passes(cursors, {"forward": perform}, order):
                yield from results
                results.clear()
        finally:
            self._status.ends()
            for executor in self.executors:
                executor.set_training(True)

    def put_back(self, key: ChannelKey, message: EncodedTensors) -> None:
        """Queue a message that was in flight at the cut, to be received first."""
        self._operations.put_back(key, message)

    def take_in_flight(self, cut: Cut, cuts: CutObserver) -> None:
        """Hand the messages that are in flight to an observer, where all stages have halted at a cut.

        Raises:
            Failed: the run has failed elsewhere.
        """
        for executor in self.executors:
            for key in self._operations.backward_keys(executor):
                channel = self._channels.channels[key]
                for micro_batch in cut.in_flight(self._programs[channel.sender - 1], executor.program):
                    while not self._operations.ready(key):
                        self._supervisor.check()
                        self._supervisor.sleep()
                    cuts.received(executor.program.index, key, micro_batch, self._operations.receive(key))

    # --- the order of operations --------------------------------------------------------------------------------------

    def _passes(  # noqa: C901, PLR0912  whatever stood in a function of its own would be one more call for each operation
        self,
        cursors: Sequence[StageCursor],
        perform: Mapping[Verb, _Perform],
        order: ExecutionOrder | None,
    ) -> Iterator[None]:
        """Do all operations of every stage; yield after each pass in which some stage did one."""
        own, clock, watched = {cursor.index: cursor for cursor in cursors}, time.perf_counter, self._supervisor.watches
        kind: Mapping[Verb, str] = {verb: "evaluation" if self._status.evaluates else verb for verb in perform}
        tallies = {(one.index, verb): self.seconds.tally(one.index, kind[verb]) for one in cursors for verb in perform}
        put_back = self._operations.put_back_messages
        holds = self._context.global_clip or self._context.replicas is not None or self.cuts is not None
        for cursor in cursors:
            cursor.waits = self._operations.waits(cursor.executor)
        while True:
            if watched:
                self._supervisor.check()
            progressed = False
            for cursor in reversed(cursors) if order is None else _first_of(order, own):
                action = cursor.next
                if action is None:
                    continue
                verb, micro_batch = action
                there = all(map(call, cursor.waits[verb])) or (
                    put_back and not self._operations.awaited(cursor, action)
                )
                if not there:
                    continue
                if (holds or self._supervisor.stop_signal is not None) and self._held_back(cursor, action):
                    continue
                began = clock()
                if watched:
                    self._status.works(cursor, action)
                try:
                    if cursor.on_device is None:
                        perform[verb](cursor, micro_batch)
                    else:
                        with cursor.on_device:
                            perform[verb](cursor, micro_batch)
                except BaseException as error:
                    task = self._status.task(cursor, action)
                    if (named := named_failure(error, cursor.executor, task)) is error:
                        raise
                    raise named from error
                tally = tallies[cursor.index, verb]
                tally[0] += 1
                tally[1] += clock() - began
                cursor.next = next(cursor.actions, None)
                progressed = True
                if order is not None:
                    order.advance()
                if self._status.evaluates:
                    break  # The batch reaches the head before the next one begins.
            if progressed:
                yield
            elif not self._wait(cursors, cursors if order is None else list(_first_of(order, own))):
                return

    def _wait(self, cursors: Sequence[StageCursor], candidates: Sequence[StageCursor]) -> bool:
        """Where no stage can begin anything: step together, or sleep; return False at the end.

        Args:
            cursors: all stages.
            candidates: those that may begin an operation.

        Raises:
            Interrupted: the stages have come to where they stop.
        """
        pending = [(cursor, cursor.next) for cursor in cursors if cursor.next is not None]
        if all(self._halts(cursor, action) for cursor, action in pending):
            if pending:
                raise Interrupted(self._supervisor.stop_signal or "SIGINT")
            return False
        if self._context.global_clip and all(action.verb == "update" for _, action in pending):
            self._status.waits(*pending[-1], "the norm of all stages", range(self._context.size))
            self._update_together(cursors)
        else:
            self._sleep([(cursor, cursor.next) for cursor in candidates if cursor.next is not None])
        return True

    def _in_order(self, cursors: Sequence[StageCursor], actions: Iterator[tuple[int, Action]]) -> ExecutionOrder | None:
        """Return the order of this process's operations under the static policy; None under `arrival`."""
        if self._context.policy == "arrival":
            return None
        own = {cursor.index: cursor for cursor in cursors}
        together = self._context.global_clip
        hosted = (
            (stage, action) for stage, action in actions if stage in own and not (together and action.verb == "update")
        )
        return ExecutionOrder(hosted, lambda stage, action: self._halts(own[stage], action))

    def _held_back(self, cursor: StageCursor, action: Action) -> bool:
        """Whether an operation waits though no message is missing: for the gradients of others, or since the run stops."""
        if action.verb == "backward":
            return False
        if action.verb == "update":
            replicas = self._context.replicas
            return self._context.global_clip or not (replicas is None or replicas.ready(cursor.index))
        if self._supervisor.stop_signal is None and self.cuts is None:
            return False
        return self._halts(cursor, action) or self._awaits_agreement(cursor, action)

    def _awaits_agreement(self, cursor: StageCursor, action: Action) -> bool:
        """Whether the first stage waits until every process knows of a cut before this forward."""
        if action.verb != "forward" or self.cuts is None or self._status.evaluates:
            return False
        return reads_samples(cursor.executor.program) and not self.cuts.may_pass(action.micro_batch)

    def _halts(self, cursor: StageCursor, action: Action) -> bool:
        """Whether a stage stops before an operation, at a request."""
        if action.verb != "forward" or self._supervisor.stop_signal is None:
            return False
        forwards, replicas = self._forwards[cursor.index], self._context.replicas
        if self._supervisor.stop_at is None and replicas is None and reads_samples(cursor.executor.program):
            ahead = 0 if self._status.evaluates else self.allowed_cut(action.micro_batch) - action.micro_batch
            self._supervisor.stop_after(forwards + ahead)
        elif replicas is not None and self._status.evaluates:
            return False  # The other replicas are somewhere else, and cannot stop at the same place.
        return self._supervisor.stop_at is not None and forwards >= self._supervisor.stop_at

    def _sleep(self, pending: Sequence[tuple[StageCursor, Action]]) -> None:
        """Sleep until one of these operations can begin."""
        awaited = [(*pair, self._operations.awaited(*pair)) for pair in pending if not self._held_back(*pair)]
        update = next((pair for pair in pending if pair[1].verb == "update"), None)
        agreement = next((pair for pair in pending if self._awaits_agreement(*pair)), None)
        if awaited and all(keys for *_, keys in awaited):
            self._status.waits_for_messages(awaited)
        elif not awaited and update is not None and self._context.replicas is not None:
            self._status.waits(*update, "the gradients of other replicas", self._context.replicas.peers)
        elif not awaited and agreement is not None:
            self._status.waits(
                *agreement, "the other processes, which must know of a checkpoint", range(self._context.size)
            )
        else:
            return  # A message, or a request to stop, came while the others were asked.
        self._supervisor.sleep()

    def _update_together(self, cursors: Sequence[StageCursor]) -> None:
        """Clip by one norm over all stages; only synchronous methods come here."""
        norm = norm_of_all(cursors, len(self._programs), alone=self._context.size == 1)
        for cursor in cursors:
            began, tally = time.perf_counter(), self.seconds.tally(cursor.index, "update")
            with cursor.on_device or nullcontext():
                cursor.executor.update(norm)
            tally[0] += 1
            tally[1] += time.perf_counter() - began
            cursor.advance()


def _first_of(order: ExecutionOrder, own: dict[int, StageCursor]) -> Iterator[StageCursor]:
    """Yield the stage whose operation begins next."""
    first = order.first()
    if first is not None:
        yield own[first[0]]

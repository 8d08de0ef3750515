"""One process at work: its stages, each in its own order of operations, over the channels of the program.

    program --> operations of the stages that this process hosts --> channels to other stages, wherever they are

One process or many run the same scheduler: a process that hosts all stages has local channels alone. Nothing but
channels connects stages, so processes, their timing and the policy change no bit of what is computed.

    policy     an operation begins                                                      for
    arrival    when its messages and its room are there, nearest to the head first      processors
    static     in one order, a pure function of the program (`program.schedule`)    devices that queue work, and
                                                                                        replicas that wait for each other

Where no operation can begin, the process sleeps until a message, room, or a request comes.

Decision: not torch.distributed.pipelining, whose schedules flush the pipeline at every step. The stages of a device share one stream: torch's
allocator gives memory that a stream has freed to that stream alone, so with a stream each, a device would hold the sum of its stages' peaks
(`compiler/memory/README.md`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import call

import torch
from attrs import evolve

from petra_graph.errors import Interrupted
from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.executor.head import HeadResult
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.program.channels import ChannelKey
from petra_graph.program.cut import Cut
from petra_graph.program.schedule import Action, Policy, Verb, static_evaluation_order, static_order
from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.control.supervisor import Supervisor
from petra_graph.runtime.replicas import Replicas
from petra_graph.runtime.scheduler.gate import CutObserver, ExecutionOrder, Gate, update_together
from petra_graph.runtime.scheduler.stage_at_work import (
    OperationSeconds,
    StageAtWork,
    StatusReporter,
    named_failure,
    stage_at_work,
    training_order,
)
from petra_graph.runtime.scheduler.stage_operations import Batches, MicroBatch, StageOperations
from petra_graph.runtime.transport.process_channels import ProcessChannels, local_channels

Observer = Callable[[HeadResult], None]
_Perform = Callable[[StageAtWork, int], None]


class Scheduler:
    """Runs the executors of this process."""

    def __init__(
        self,
        executors: Sequence[StageExecutor],
        channels: ProcessChannels | None = None,
        *,
        supervisor: Supervisor | None = None,
        replicas: Replicas | None = None,
        policy: Policy = "arrival",
        global_clip: bool = False,
        rank: int = 0,
        size: int = 1,
    ) -> None:
        """Connect executors to channels.

        Args:
            executors: of the stages that this process hosts, in the order of stages.
            channels: the ends that this process holds; None: it hosts all stages.
            supervisor: tells of the rest of the run; None: this process is the whole run.
            replicas: of the stages, with whose gradients theirs are averaged.
            policy: as above.
            global_clip: all stages are clipped by one norm.
            rank: of this process.
            size: the number of processes.
        """
        self.executors = executors
        self._supervisor = supervisor or Supervisor()
        self._policy, self._size = policy, size
        self._channels = channels or local_channels([executor.program for executor in executors])
        self._status = StatusReporter(self._supervisor, self._channels, rank)
        self._stages = [stage_at_work(executor, self._channels) for executor in executors]
        self._operations = StageOperations(self._stages, self._channels)
        self.seconds = OperationSeconds()
        """Since this process's start."""
        self.gate = Gate(self._supervisor, replicas, global_clip)
        """What holds operations back: a checkpoint, for one."""
        self.halted: Cut | None = None
        """Where all stages stopped at a request, in training."""

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
        source, replicas = iter(data), self.gate.replicas
        cut = Cut(micro_batches=micro_batches, at=micro_batches.start if at is None else at, filled=filled)
        self._status.begin(micro_batches, filled)
        self._channels.begin_training(cut)
        cuts = self.gate.cuts
        self._operations.observe_message = None if cuts is None else cuts.received
        if replicas is not None:
            replicas.begin(micro_batches)
        for stage in self._stages:
            stage.executor.updater.filled(filled)
            stage.begin(training_order(stage.executor.program, cut))

        perform = self._training(cut, source, observe)
        behind = (
            (index, action)
            for index, action in static_order(self._programs, micro_batches, filled)
            if not cut.precedes(self._programs[index - 1], action)
        )
        try:
            # A stage's backward is short: to hand it to autograd's thread of the GPU, and to wait for that, takes longer than to queue its kernels.
            with torch.autograd.set_multithreading_enabled(False):
                for _ in self._passes(perform, behind):
                    pass
        except Interrupted:
            stopped = next(stage.next for stage in self._stages if stage.next is not None)
            self.halted = evolve(cut, at=stopped.micro_batch)
            self._status.ends()
            raise
        for executor in self.executors:
            executor.check()
        if replicas is not None:
            last = Action("update", micro_batches.stop - 1)
            self._status.waits(self._stages[-1], last, "the running statistics of other replicas", replicas.peers)
            replicas.average_statistics()
        self._status.ends()

    def _training(self, cut: Cut, source: Iterator[MicroBatch], observe: Observer) -> Mapping[Verb, _Perform]:
        """Return what a stage does in each operation of a training."""
        cuts, replicas = self.gate.cuts, self.gate.replicas

        def forward(stage: StageAtWork, micro_batch: int) -> None:
            if cuts is not None and cuts.due(micro_batch):
                cuts.reached(stage.executor, evolve(cut, at=micro_batch))
            result = self._operations.forward(stage, source, micro_batch)
            stage.forwards += 1
            if result is not None:
                observe(result)

        def backward(stage: StageAtWork, micro_batch: int) -> None:
            self._operations.backward(stage, micro_batch)
            executor = stage.executor
            # Half as often as the head's loss is read, which says more of the same failure.
            if executor.reads_later and (micro_batch + 1) % (2 * executor.read_interval) == 0:
                executor.check()

        def update(stage: StageAtWork, _: int) -> None:
            stage.executor.update()
            if replicas is not None and replicas.stop_requested(stage.index):
                self._supervisor.stop_after(stage.forwards)

        return {"forward": forward, "backward": backward, "update": update}

    def evaluate(self, data: Batches) -> Iterator[HeadResult]:
        """Evaluate batches of any size with running statistics; yield results where the head is.

        Raises:
            Interrupted, Failed, RunFailed: as `train`.
        """
        source, sizes = iter(data), data.sizes
        batches = range(len(sizes))
        self._channels.begin_evaluation(sizes)
        results: list[HeadResult] = []
        for stage in self._stages:
            stage.begin(Action("forward", batch) for batch in batches)

        def perform(stage: StageAtWork, _: int) -> None:
            result = self._operations.forward(stage, source, None)
            stage.forwards += self.gate.replicas is None
            if result is not None:
                results.append(result)

        self._status.begin(batches, evaluates=True)
        self.gate.evaluates = True
        for executor in self.executors:
            executor.set_training(False)
        try:
            in_order = static_evaluation_order(self._programs, batches)
            for _ in self._passes({"forward": perform}, in_order):
                yield from results
                results.clear()
        finally:
            self._status.ends()
            self.gate.evaluates = False
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
        for stage in self._stages:
            for key, *_ in stage.incoming["backward"]:
                sender = self._programs[self._channels.channels[key].sender - 1]
                for micro_batch in cut.in_flight(sender, stage.executor.program):
                    while not self._operations.ready(key):
                        self._supervisor.check()
                        self._supervisor.sleep()
                    cuts.received(stage.index, key, micro_batch, self._operations.receive(key))

    # --- the order of operations --------------------------------------------------------------------------------------

    def _passes(  # noqa: C901, PLR0912  whatever stood in a function of its own would be one more call for each operation
        self,
        perform: Mapping[Verb, _Perform],
        in_order: Iterator[tuple[int, Action]],
    ) -> Iterator[None]:
        """Do all operations of every stage; yield after each pass in which some stage did one.

        Args:
            in_order: the operations of all processes in their one order, which the static policy follows.
        """
        gate = self.gate
        order = ExecutionOrder(in_order, self._stages, gate) if self._policy == "static" else None
        clock, watched, may_hold = time.perf_counter, self._supervisor.watches, gate.may_hold
        kind: Mapping[Verb, str] = {verb: "evaluation" if gate.evaluates else verb for verb in perform}
        tallies = {
            (one.index, verb): self.seconds.tally(one.index, kind[verb]) for one in self._stages for verb in perform
        }
        put_back = self._operations.put_back_messages
        nearest_first = self._stages[::-1]
        while True:
            if watched:
                self._supervisor.check()
            progressed = False
            for stage in nearest_first if order is None else order.candidates():
                action = stage.next
                if action is None:
                    continue
                verb, micro_batch = action
                there = all(map(call, stage.waits[verb]))
                if not there and not (put_back and not self._operations.awaited(stage, action)):
                    continue
                if (may_hold or self._supervisor.stop_signal is not None) and gate.holds_back(stage, action):
                    continue
                began = clock()
                if watched:
                    self._status.works(stage, action)
                try:
                    if stage.on_device is None:
                        perform[verb](stage, micro_batch)
                    else:
                        with stage.on_device:
                            perform[verb](stage, micro_batch)
                except BaseException as error:
                    task = self._status.task(stage, action)
                    if (named := named_failure(error, stage.executor, task)) is error:
                        raise
                    raise named from error
                tally = tallies[stage.index, verb]
                tally[0] += 1
                tally[1] += clock() - began
                stage.next = next(stage.actions, None)  # `advance` would be a call
                progressed = True
                if order is not None:
                    order.advance()
                if gate.evaluates:
                    break  # The batch reaches the head before the next one begins.
            if progressed:
                yield
            elif not self._wait(self._stages if order is None else order.candidates()):
                return

    def _wait(self, candidates: Sequence[StageAtWork]) -> bool:
        """Step together, or sleep: none of the stages that may begin an operation can begin one; return False at the end.

        Raises:
            Interrupted: the stages have come to where they stop.
        """
        pending = [(stage, stage.next) for stage in self._stages if stage.next is not None]
        if all(self.gate.halts(stage, action) for stage, action in pending):
            if pending:
                raise Interrupted(self._supervisor.stop_signal or "SIGINT")
            return False
        if self.gate.global_clip and all(action.verb == "update" for _, action in pending):
            self._status.waits(*pending[-1], "the norm of all stages", range(self._size))
            update_together(self._stages, len(self._programs), self.seconds, alone=self._size == 1)
        else:
            self._sleep([(stage, stage.next) for stage in candidates if stage.next is not None])
        return True

    def _sleep(self, pending: Sequence[tuple[StageAtWork, Action]]) -> None:
        """Sleep until one of these operations can begin."""
        gate = self.gate
        awaited = [(*pair, self._operations.awaited(*pair)) for pair in pending if not gate.holds_back(*pair)]
        update = next((pair for pair in pending if pair[1].verb == "update"), None)
        agreement = next((pair for pair in pending if gate.awaits_agreement(*pair)), None)
        if awaited and all(keys for *_, keys in awaited):
            self._status.waits_for_messages(awaited)
        elif not awaited and update is not None and self.gate.replicas is not None:
            self._status.waits(*update, "the gradients of other replicas", self.gate.replicas.peers)
        elif not awaited and agreement is not None:
            self._status.waits(*agreement, "the other processes, which must know of a checkpoint", range(self._size))
        else:
            return  # A message, or a request to stop, came while the others were asked.
        self._supervisor.sleep()

"""How a process works: its stages, each in its own order of operations, over the channels of the program.

    program --> operations of the stages that this process hosts --> channels to other stages, wherever they are

One process or many run the same loop: a process that hosts all stages has local channels alone. Nothing but
channels connects stages, so processes, their timing and the policy change no bit of what is computed.

    policy     an operation begins                                                      for
    arrival    when its messages and its room are there, nearest to the head first      processors
    static     in one order, a pure function of the program (`program.schedule`)        devices that queue work, and
                                                                                        replicas that wait for each other

Where no operation can begin, the process sleeps until a message, room, or a request comes. What holds an operation back though its
messages are there:

    a request to stop    every stage's forward of one number, which the process of the first stage chooses
    a checkpoint         the first stage's forward, until all processes know of the cut before it
    replicas             an update, until its gradients are averaged
    one norm             all updates, until every stage has come to its own

Decision: not torch.distributed.pipelining, whose schedules flush the pipeline at every step. The stages of a device share one stream: torch's
allocator gives memory that a stream has freed to that stream alone, so with a stream each, a device would hold the sum of its stages' peaks
(`compiler/memory.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from operator import call
from typing import Any, Protocol

import attrs
import torch
import torch.distributed as dist

from petra_graph.errors import Interrupted, PetraGraphError, RunFailed, raised_text
from petra_graph.executor.encoded import EncodedTensors
from petra_graph.executor.head import HeadResult
from petra_graph.executor.stage import StageExecutor
from petra_graph.program.channels import ChannelKey
from petra_graph.program.cut import Cut
from petra_graph.program.schedule import Action, Policy, Verb, static_evaluation_order, static_order
from petra_graph.runtime.failure import OperationStatus
from petra_graph.runtime.open_channels import ProcessChannels, local_channels
from petra_graph.runtime.replicas import Replicas
from petra_graph.runtime.stage_io import Batches, Feed, MicroBatch, StageAtWork, training_order
from petra_graph.runtime.store import StoreGone
from petra_graph.runtime.watchdog import Failed, Supervisor

Observer = Callable[[HeadResult], None]
_Perform = Callable[[StageAtWork, int], None]


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
        self.cuts: CutObserver | None = None
        """Takes the state of the stages at some cuts."""
        self.allowed_cut: Callable[[int], int] = lambda at: at
        """Returns the first forward from one on before which the stages may stop."""
        self.halted: Cut | None = None
        """Where all stages stopped at a request, in training."""
        self._supervisor = supervisor or Supervisor()
        self._replicas, self._policy, self._global_clip = replicas, policy, global_clip
        self._rank, self._size = rank, size
        self._channels = channels or local_channels([executor.program for executor in executors])
        self._programs = self._channels.programs
        self._feed = Feed(executors)
        self._stages = [StageAtWork(executor, self._channels, self._feed) for executor in executors]
        self._cut = Cut(micro_batches=range(0), at=0)
        """Where the present training began."""
        self._batches: range | None = None
        """Of the present evaluation."""

    def train(
        self,
        data: Iterable[MicroBatch],
        micro_batches: range,
        observe: Observer | None,
        at: int | None = None,
        filled: int = 0,
    ) -> None:
        """Train on `micro_batches`, and drain.

        Args:
            data: what the stages of this process read: samples for the first, targets for the last.
            micro_batches: their numbers, counted from the run's start.
            observe: called in the process that hosts the head, with the head's result of each micro-batch, before its
                backward; what it raises ends the training between two operations. None: nobody asks, and no metrics are computed.
            at: continue from the cut before this forward, with the messages in flight of `put_back`; None: from the start.
            filled: the pipeline fills again before this forward, or did so before the cut.

        Raises:
            Interrupted: a request to stop came; all stages have stopped before the same forward.
            Failed: the run has failed elsewhere.
            RunFailed: it fails here.
        """
        start = micro_batches.start if at is None else at
        self._cut = cut = Cut(micro_batches=micro_batches, at=start, filled=filled)
        self._feed.source = iter(data)
        self._channels.begin_training(cut)
        replicas = self._replicas
        if replicas is not None:
            replicas.begin(micro_batches)
        for stage in self._stages:
            stage.executor.updater.filled(filled)
            stage.executor.measure(metrics=observe is not None)
            actions = training_order(stage.executor.program, cut)
            stage.begin(actions, None if self.cuts is None else self.cuts.received)
        behind = (
            (index, action)
            for index, action in static_order(self._programs, micro_batches, filled)
            if not cut.precedes(self._programs[index - 1], action)
        )
        try:
            # A stage's backward is short: to hand it to autograd's thread of the GPU, and to wait for that, takes longer than to queue its kernels.
            with torch.autograd.set_multithreading_enabled(False):
                for _ in self._passes(self._training(cut, observe), behind):
                    pass
        except Interrupted:
            stopped = next(stage.next for stage in self._stages if stage.next is not None)
            self.halted = attrs.evolve(cut, at=stopped.micro_batch)
            self._supervisor.status = None
            raise
        for executor in self.executors:
            executor.check()
        if replicas is not None:
            last = Action("update", micro_batches.stop - 1)
            self._waits(self._stages[-1], last, "the running statistics of other replicas", replicas.peers)
            replicas.average_statistics()
        self._supervisor.status = None

    def _training(self, cut: Cut, observe: Observer | None) -> Mapping[Verb, _Perform]:
        """Return what a stage does in each operation of a training."""
        cuts, replicas = self.cuts, self._replicas

        def forward(stage: StageAtWork, micro_batch: int) -> None:
            if cuts is not None and cuts.due(micro_batch):
                cuts.reached(stage.executor, attrs.evolve(cut, at=micro_batch))
            result = stage.forward(micro_batch)
            stage.forwards += 1
            if result is not None and observe is not None:
                observe(result)

        def backward(stage: StageAtWork, micro_batch: int) -> None:
            stage.backward(micro_batch)
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
        sizes = data.sizes
        batches = self._batches = range(len(sizes))
        self._feed.source = iter(data)
        self._channels.begin_evaluation(sizes)
        results: list[HeadResult] = []
        for stage in self._stages:
            stage.begin(Action("forward", batch) for batch in batches)

        def evaluate(stage: StageAtWork, _: int) -> None:
            result = stage.forward(None)
            stage.forwards += self._replicas is None
            if result is not None:
                results.append(result)

        for executor in self.executors:
            executor.set_training(False)
        try:
            for _ in self._passes({"forward": evaluate}, static_evaluation_order(self._programs, batches)):
                yield from results
                results.clear()
        finally:
            self._supervisor.status = self._batches = None
            for executor in self.executors:
                executor.set_training(True)

    def put_back(self, key: ChannelKey, message: EncodedTensors) -> None:
        """Queue a message that was in flight at the cut, to be received first."""
        self._channels.put_back(key, message)

    def take_in_flight(self, cut: Cut, cuts: CutObserver) -> None:
        """Hand the messages that are in flight to an observer, where all stages have halted at a cut.

        Raises:
            Failed: the run has failed elsewhere.
        """
        for stage in self._stages:
            for key, receive, *_ in stage.incoming["backward"]:
                sender = self._programs[self._channels.channels[key].sender - 1]
                for micro_batch in cut.in_flight(sender, stage.executor.program):
                    while not self._channels.receivers[key].ready():
                        self._supervisor.check()
                        self._supervisor.sleep()
                    cuts.received(stage.index, key, micro_batch, receive())

    def measured(self, stage: int) -> Mapping[str, Any]:
        """Return a stage's operations since this process's start as JSON: by kind, how many there were and their seconds."""
        return next(one.measured() for one in self._stages if one.index == stage)

    # --- the order of operations --------------------------------------------------------------------------------------

    def _passes(  # noqa: C901, PLR0912  whatever stood in a function of its own would be one more call for each operation
        self, perform: Mapping[Verb, _Perform], in_order: Iterator[tuple[int, Action]]
    ) -> Iterator[None]:
        """Do all operations of every stage; yield after each pass in which some stage did one.

        Args:
            in_order: the operations of all processes in their one order, which the static policy follows.
        """
        order = self._static(in_order) if self._policy == "static" else None
        evaluates, supervisor, clock = self._batches is not None, self._supervisor, time.monotonic
        watched, may_hold = supervisor.watches, self._global_clip or self._replicas is not None or self.cuts is not None
        tallies = {
            (stage.index, verb): stage.tally("evaluation" if evaluates else verb)
            for stage in self._stages
            for verb in perform
        }
        nearest_first = self._stages[::-1]
        while True:
            if watched:
                supervisor.check()
            progressed = False
            for stage in nearest_first if order is None else order.first():
                action = stage.next
                if action is None:
                    continue
                verb, micro_batch = action
                if not all(map(call, stage.waits[verb])):
                    continue
                if (may_hold or supervisor.stop_signal is not None) and self._holds_back(stage, action):
                    continue
                began = clock()
                if watched:
                    supervisor.status = self._status(stage, action, began)
                try:
                    if stage.on_device is None:
                        perform[verb](stage, micro_batch)
                    else:
                        with stage.on_device:
                            perform[verb](stage, micro_batch)
                except BaseException as error:
                    named = named_failure(error, self._status(stage, action, began))
                    if named is error:
                        raise
                    raise named from error
                tally = tallies[stage.index, verb]
                tally[0] += 1
                tally[1] += clock() - began
                stage.advance()
                progressed = True
                if order is not None:
                    order.advance()
                if evaluates:
                    break  # The batch reaches the head before the next one begins.
            if progressed:
                yield
            elif not self._wait(self._stages if order is None else order.first()):
                return

    def _static(self, in_order: Iterator[tuple[int, Action]]) -> StaticOrder:
        here = {stage.index: stage for stage in self._stages}
        # Under one norm, updates are made together.
        own = (
            here[index]
            for index, action in in_order
            if index in here and not (self._global_clip and action.verb == "update")
        )
        return StaticOrder(own, self._halts)

    def _holds_back(self, stage: StageAtWork, action: Action) -> bool:
        """Whether an operation waits though no message is missing."""
        if action.verb == "update":
            return self._global_clip or not (self._replicas is None or self._replicas.ready(stage.index))
        return action.verb == "forward" and (self._halts(stage, action) or self._awaits_agreement(stage, action))

    def _awaits_agreement(self, stage: StageAtWork, action: Action) -> bool:
        """Whether the first stage waits until every process knows of a cut before this forward."""
        if action.verb != "forward" or self.cuts is None or self._batches is not None or not stage.samples:
            return False
        return not self.cuts.may_pass(action.micro_batch)

    def _halts(self, stage: StageAtWork, action: Action) -> bool:
        """Whether a stage stops before an operation, at a request."""
        supervisor, evaluates = self._supervisor, self._batches is not None
        if action.verb != "forward" or supervisor.stop_signal is None:
            return False
        if supervisor.stop_at is None and self._replicas is None and stage.samples:
            ahead = 0 if evaluates else self.allowed_cut(action.micro_batch) - action.micro_batch
            supervisor.stop_after(stage.forwards + ahead)
        elif self._replicas is not None and evaluates:
            return False  # The other replicas are somewhere else, and cannot stop at the same place.
        return supervisor.stop_at is not None and stage.forwards >= supervisor.stop_at

    # --- where no operation can begin ---------------------------------------------------------------------------------

    def _wait(self, candidates: Sequence[StageAtWork]) -> bool:
        """Step together, or sleep: none of the stages that may begin an operation can begin one; return False at the end.

        Raises:
            Interrupted: the stages have come to where they stop.
        """
        pending = [(stage, stage.next) for stage in self._stages if stage.next is not None]
        if all(self._halts(stage, action) for stage, action in pending):
            if pending:
                raise Interrupted(self._supervisor.stop_signal or "SIGINT")
            return False
        if self._global_clip and all(action.verb == "update" for _, action in pending):
            self._waits(*pending[-1], "the norm of all stages", range(self._size))
            self._update_together()
        else:
            self._sleep([(stage, stage.next) for stage in candidates if stage.next is not None])
        return True

    def _update_together(self) -> None:
        """Clip all stages by one norm, and update those of this process; only synchronous methods do so."""
        squares = [stage.executor.updater.squared_norm() for stage in self._stages]
        if self._size == 1:  # nothing is read from a device
            device = self._stages[-1].device
            norm = torch.stack([squared.to(device, non_blocking=True) for squared in squares]).sum().sqrt()
        else:
            norms = torch.zeros(len(self._programs), dtype=torch.float64)
            for stage, squared in zip(self._stages, squares, strict=True):
                norms[stage.index - 1] = squared
            dist.all_reduce(norms)  # every element has one addend that is not zero
            norm = norms.sum().sqrt()  # squares are summed in the order of stages
        for stage in self._stages:
            began, tally = time.monotonic(), stage.tally("update")
            with stage.on_device or nullcontext():
                stage.executor.update(norm)
            tally[0] += 1
            tally[1] += time.monotonic() - began
            stage.advance()

    def _sleep(self, pending: Sequence[tuple[StageAtWork, Action]]) -> None:
        """Sleep until one of these operations can begin."""
        awaited = [(*pair, pair[0].awaited(pair[1])) for pair in pending if not self._holds_back(*pair)]
        update = next((pair for pair in pending if pair[1].verb == "update"), None)
        agreement = next((pair for pair in pending if self._awaits_agreement(*pair)), None)
        if awaited and all(keys for *_, keys in awaited):
            self._waits_for_messages(awaited)
        elif not awaited and update is not None and self._replicas is not None:
            self._waits(*update, "the gradients of other replicas", self._replicas.peers)
        elif not awaited and agreement is not None:
            self._waits(*agreement, "the other processes, which must know of a checkpoint", range(self._size))
        else:
            return  # A message, or a request to stop, came while the others were asked.
        self._supervisor.sleep()

    def _waits_for_messages(self, awaited: Sequence[tuple[StageAtWork, Action, Sequence[ChannelKey]]]) -> None:
        """Report that each of some stages waits on channels: of one that waits for another process, if there is one."""
        peers = {key: self._channels.peer(key, self._rank) for *_, keys in awaited for key in keys}
        outside = [[key for key in keys if peers[key] != self._rank] for *_, keys in awaited]
        at = max(range(len(awaited)), key=lambda at: (bool(outside[at]), at))
        stage, action, keys = awaited[at]
        others = sorted({peers[key] for keys in outside for key in keys})
        self._waits(stage, action, ", ".join(map(str, outside[at] or keys)), others)

    def _waits(self, stage: StageAtWork, action: Action, awaited: str, ranks: Iterable[int]) -> None:
        """Report that a stage waits, since when, and the processes that could end its wait."""
        status, before = self._status(stage, action, time.monotonic()), self._supervisor.status
        if before is not None and before.channel == awaited and before.micro_batch == status.micro_batch:
            status.since = before.since
        status.channel, status.waits_for = awaited, tuple(rank for rank in ranks if rank != self._rank)
        self._supervisor.status = status

    def _status(self, stage: StageAtWork, action: Action, since: float) -> OperationStatus:
        batches, cut = self._batches, self._cut
        return OperationStatus(
            program=stage.executor.program,
            operation=action.verb if batches is None else "evaluation",
            micro_batch=action.micro_batch,
            micro_batches=cut.micro_batches if batches is None else batches,
            filled=cut.filled,
            since=since,
        )


class StaticOrder:
    """The stages of a process in the one order in which their operations begin."""

    def __init__(self, stages: Iterator[StageAtWork], halts: Callable[[StageAtWork, Action], bool]) -> None:
        self._stages, self._halts = stages, halts
        self._halted: set[int] = set()
        """They perform nothing more."""
        self._first = next(stages, None)

    def first(self) -> Sequence[StageAtWork]:
        """Return the stage whose operation begins next, if there is one."""
        while (stage := self._first) is not None:
            if stage.index not in self._halted and not (stage.next and self._halts(stage, stage.next)):
                return [stage]
            self._halted.add(stage.index)
            self.advance()
        return []

    def advance(self) -> None:
        self._first = next(self._stages, None)


def named_failure(error: BaseException, status: OperationStatus) -> BaseException:
    """Return what to raise for an error of a stage's operation: one that names both, unless it says where it comes from.

    A block that calls sys.exit() fails as well, and does not end the program.
    """
    if isinstance(error, PetraGraphError | Interrupted | Failed | StoreGone | KeyboardInterrupt | GeneratorExit):
        return error
    message = f"{status.stage} failed in the {status.task}: {raised_text(error)}"
    return RunFailed(message, hint="failure.txt in the run directory has the traceback")

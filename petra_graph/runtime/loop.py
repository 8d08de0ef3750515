"""How a process works: its stages, each in its own order of operations, over the channels of the program.

    program --> operations of the stages that this process hosts --> channels to other stages, wherever they are

One process or many run the same loop: a process that hosts all stages has local channels alone. Nothing but
channels connects stages, so processes, their timing and the policy change no bit of what is computed.

    policy     an operation begins                                                      for
    arrival    when its messages and its room are there, nearest to the head first      processors
    static     in one order, a pure function of the program (`program.simulation`)      devices that queue work, and
                                                                                        replicas that wait for each other

Where no operation can begin, the process sleeps until a message, room, or a request comes. What holds an operation back though its
messages are there:

    a request to stop    every stage's forward of one number, which the process of the first stage chooses
    replicas             an update, until its gradients are averaged
    one norm             all updates, until every stage has come to its own

Decision: processors follow no fixed order. With one stage a process it is as fast as arrival; with four it was 16 % slower, and still 8 to 9 %
where the order was simulated with the seconds that the stages had taken: what an operation takes varies, and a fixed order waits for the slowest.

Decision: not torch.distributed.pipelining, whose schedules flush the pipeline at every step. The stages of a device share one stream: torch's
allocator gives memory that a stream has freed to that stream alone, so with a stream each, a device would hold the sum of its stages' peaks
(`compiler/memory.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import call, itemgetter
from typing import Any, NoReturn

import attrs
import torch
import torch.distributed as dist

from petra_graph.errors import Interrupted, PetraGraphError, RunFailed, raised_text
from petra_graph.executor.head import HeadResult
from petra_graph.executor.stage import StageExecutor
from petra_graph.program.cut import Cut
from petra_graph.program.schedule import Action, Policy
from petra_graph.program.simulation import static_order
from petra_graph.runtime.open_channels import ProcessChannels, local_channels
from petra_graph.runtime.replicas import Replicas
from petra_graph.runtime.stage_io import CutObserver, Feed, MicroBatch, Observer, StageAtWork
from petra_graph.runtime.store import StoreGone
from petra_graph.runtime.watchdog import Failed, OperationStatus, Supervisor


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
    ) -> None:
        """Connect executors to channels.

        Args:
            executors: of the stages that this process hosts, in the order of stages; without the others, of all stages of the run.
            channels: the ends that this process holds.
            supervisor: tells of the rest of the run.
            replicas: with whose gradients those of the stages are averaged.
        """
        self.executors = executors
        self.cuts: CutObserver | None = None
        """Takes the state of the stages at some cuts."""
        self.allowed_cut: Callable[[int], int] = lambda at: at
        """Returns the first forward from one on before which the stages may stop."""
        self.halted: Cut | None = None
        """Where all stages stopped at a request, in training."""
        self._supervisor = supervisor or Supervisor()
        self._replicas, self._policy, clip = replicas, policy, executors[0].updater.clip
        self._global_clip = clip is not None and clip.scope == "global"
        """Whether all stages are clipped by one norm."""
        self.channels = channels or local_channels([executor.program for executor in executors])
        self._programs = self.channels.programs
        self._feed = Feed(executors)
        self._stages = [StageAtWork(executor, self.channels, self._feed) for executor in executors]
        self._cut = Cut(micro_batches=range(0), at=0)
        """Where the present training began."""
        self._evaluates = False

    def train(
        self,
        data: Iterable[MicroBatch],
        micro_batches: range,
        observe: Observer | None,
        at: int | None = None,
        filled: int = 0,
    ) -> None:
        """Train on `micro_batches`, and drain.

        Interrupted: a request to stop came, and all stages have stopped before the same forward; Failed: the run has failed elsewhere; RunFailed: here.

        Args:
            data: what the stages of this process read: samples for the first, targets for the last.
            micro_batches: their numbers, counted from the run's start.
            observe: called in the process that hosts the head, with the head's result of each micro-batch, before its
                backward; what it raises ends the training between two operations. None: nobody asks, and no metrics are computed.
            at: continue from the cut before this forward, with the messages in flight of `put_back`; None: from the start.
            filled: the pipeline fills again before this forward, or did so before the cut.
        """
        start = micro_batches.start if at is None else at
        self._cut = cut = Cut(micro_batches=micro_batches, at=start, filled=filled)
        self._feed.source = iter(data)
        self.channels.begin_training(cut)
        replicas = self._replicas
        if replicas is not None:
            replicas.begin(micro_batches)
        for stage in self._stages:
            stage.begin_training(cut, observe, self.cuts, replicas)
        # A stage's backward is short: to hand it to autograd's thread of the GPU, and to wait for that, takes longer than to queue its kernels.
        with torch.autograd.set_multithreading_enabled(False):
            self._work()
        if (stopped := next((stage.next for stage in self._stages if stage.next is not None), None)) is not None:
            self.halted = attrs.evolve(cut, at=stopped.micro_batch)
            self._interrupt()
        for executor in self.executors:
            executor.check()
        if replicas is not None:
            last = Action("update", micro_batches.stop - 1)
            self._waits(self._stages[-1], last, "the running statistics of other replicas")
            replicas.average_statistics()
        self._supervisor.status = None

    def evaluate(self, data: Iterable[MicroBatch], sizes: Sequence[int]) -> Iterator[HeadResult]:
        """Evaluate batches of these sizes with running statistics, in turn; yield results where the head is. It raises what `train` does."""
        batches, stages = range(len(sizes)), self._stages
        self._evaluates, self._feed.source = True, iter(data)
        self.channels.begin_evaluation(sizes)
        for stage in stages:
            stage.begin_evaluation(batches)
            stage.executor.set_training(False)
        try:
            for stage, action in ((stage, Action("forward", batch)) for batch in batches for stage in stages):
                self._supervisor.check()
                while not (stops := self._halts(stage, action)) and stage.awaited(action):
                    self._sleep([stage])
                    self._supervisor.check()
                if stops:
                    self._interrupt()
                result = self._perform(stage, action)
                stage.forwards += self._replicas is None
                if result is not None:
                    yield result
        finally:
            self._supervisor.status, self._evaluates = None, False
            for executor in self.executors:
                executor.set_training(True)

    def take_in_flight(self, cut: Cut, cuts: CutObserver) -> None:
        """Hand over the messages that are in flight, where all stages have halted at a cut; Failed: the run has failed elsewhere."""
        for stage in self._stages:
            for key, receive, _ in stage.incoming["backward"]:
                sender = self._programs[self.channels.channels[key].sender - 1]
                for micro_batch in cut.in_flight(sender, stage.executor.program):
                    while not self.channels.receivers[key].ready():
                        self._supervisor.check()
                        self._supervisor.sleep()
                    cuts.received(key, micro_batch, receive())

    def measured(self, stage: int) -> Mapping[str, Any]:
        """Return a stage's operations since this process's start as JSON: by kind, how many there were and their seconds."""
        tallies = next(one.tallies for one in self._stages if one.index == stage).items()
        return {verb: {"operations": count, "seconds": round(total, 6)} for verb, (count, total) in tallies if count}

    # --- the order of operations --------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Do all operations of a training, up to where the stages stop at a request."""
        supervisor = self._supervisor
        nearest_first = self._stages[::-1]
        for candidates in repeat(nearest_first) if self._policy == "arrival" else self._turns():
            if supervisor.watches:
                supervisor.check()
            progressed = False
            for stage in candidates:
                action = stage.next
                if action is None or not all(map(call, stage.operations[action.verb].ready)):
                    continue
                if (self._global_clip or supervisor.stop_signal is not None) and self._holds_back(stage, action):
                    continue
                self._perform(stage, action)
                progressed = True
            if progressed:
                continue
            pending = [(stage, stage.next) for stage in self._stages if stage.next is not None]
            if all(self._halts(*one) for one in pending):
                return
            if self._global_clip and all(action.verb == "update" for _, action in pending):
                self._waits(*pending[-1], "the norm of all stages")
                self._update_together()
            else:
                self._sleep(candidates)

    def _turns(self) -> Iterator[Sequence[StageAtWork]]:
        """Yield the stage whose operation is next in the one order of all processes, until it is done or halts; then none."""
        cut, here = self._cut, {stage.index: stage for stage in self._stages}
        for index, action in static_order(self._programs, cut.micro_batches, cut.filled):
            stage = here.get(index)
            # Under one norm, updates are made together.
            if stage is None or (self._global_clip and action.verb == "update"):
                continue
            if cut.precedes(stage.executor.program, action):
                continue
            while stage.done != action and stage.next is not None and not self._halts(stage, stage.next):
                yield [stage]
        yield from repeat([])

    def _perform(self, stage: StageAtWork, action: Action) -> HeadResult | None:
        operation, began = stage.operations[action.verb], time.monotonic()
        if self._supervisor.watches:
            self._supervisor.status = self._status(stage, action, began)
        try:
            result = operation.perform(action.micro_batch)
        except (PetraGraphError, Interrupted, Failed, StoreGone, KeyboardInterrupt, GeneratorExit):
            raise  # it says where it comes from
        except BaseException as error:  # a block that calls sys.exit() fails as well, and does not end the program
            where = self._status(stage, action, began)
            message = f"{where.stage} failed in the {where.task}: {raised_text(error)}"
            raise RunFailed(message, hint="failure.txt in the run directory has the traceback") from error
        operation.tally[0] += 1
        operation.tally[1] += time.monotonic() - began
        stage.done, stage.next = action, next(stage.actions, None)
        return result

    def _holds_back(self, stage: StageAtWork, action: Action) -> bool:
        """Whether an operation waits though nothing is missing: for a stop, or for the updates of all other stages."""
        return (self._global_clip and action.verb == "update") or self._halts(stage, action)

    def _halts(self, stage: StageAtWork, action: Action) -> bool:
        """Whether a stage stops before an operation, at a request."""
        supervisor, evaluates = self._supervisor, self._evaluates
        if action.verb != "forward" or supervisor.stop_signal is None:
            return False
        if self._replicas is not None and evaluates:
            return False  # The other replicas are somewhere else, and cannot stop at the same place.
        if supervisor.stop_at is None and self._replicas is None and stage.samples:
            ahead = 0 if evaluates else self.allowed_cut(action.micro_batch) - action.micro_batch
            supervisor.stop_after(stage.forwards + ahead)
        return supervisor.stop_at is not None and stage.forwards >= supervisor.stop_at

    def _interrupt(self) -> NoReturn:
        self._supervisor.status = None
        raise Interrupted(self._supervisor.stop_signal or "SIGINT")

    # --- where no operation can begin ---------------------------------------------------------------------------------

    def _update_together(self) -> None:
        """Clip all stages by one norm, and update those of this process; only synchronous methods do so."""
        squares = [stage.executor.updater.squared_norm() for stage in self._stages]
        if len(set(self.channels.ranks)) == 1:  # nothing is read from a device
            device = self._stages[-1].device
            norm = torch.stack([squared.to(device, non_blocking=True) for squared in squares]).sum().sqrt()
        else:
            norms = torch.zeros(len(self._programs), dtype=torch.float64)
            for stage, squared in zip(self._stages, squares, strict=True):
                norms[stage.index - 1] = squared
            with self._supervisor.answered("the norm of all stages"):
                dist.all_reduce(norms)  # every element has one addend that is not zero
            norm = norms.sum().sqrt()  # squares are summed in the order of stages
        for stage in self._stages:
            assert stage.next is not None
            stage.norm = norm
            self._perform(stage, stage.next)

    def _sleep(self, candidates: Sequence[StageAtWork]) -> None:
        """Sleep until one of these stages can begin its operation; meanwhile the status is that of one that waits for another process, if there is one."""
        found: list[tuple[bool, StageAtWork, Action, str]] = []
        for stage in candidates:
            action = stage.next
            if action is None or self._holds_back(stage, action):
                continue
            if not (missing := stage.awaited(action)):
                return  # It came while the others were asked.
            outside = [one for one in missing if one.outside]
            found.append((bool(outside), stage, action, ", ".join(one.what for one in outside or missing)))
        if found:
            self._waits(*max(found, key=itemgetter(0))[1:])
            self._supervisor.sleep()

    def _waits(self, stage: StageAtWork, action: Action, awaited: str) -> None:
        """Report that a stage waits, for what, and since when."""
        status, before = self._status(stage, action, time.monotonic()), self._supervisor.status
        if before is not None and before.channel == awaited and before.micro_batch == status.micro_batch:
            status.since = before.since
        status.channel = awaited
        self._supervisor.status = status

    def _status(self, stage: StageAtWork, action: Action, since: float) -> OperationStatus:
        verb = "evaluation" if self._evaluates else action.verb
        return OperationStatus(stage.executor.program, verb, action.micro_batch, since)

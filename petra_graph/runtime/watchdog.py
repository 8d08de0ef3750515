"""What a process does, how a run fails, and the watchdog: a thread that publishes heartbeats and detects processes that are dead or stuck.

With each heartbeat the watchdog publishes the status of its process and reads what concerns all processes: a failure, a
request to stop, and the forward before which to stop. So every process knows within about a second, whatever its
stages do. A request during a step of the start, such as compiling, ends all processes: nothing is lost by that.

    a process dies              the watchdogs of the same machine see it at once; on other machines the watchdog of the
                                rank before misses its heartbeats
    an operation takes long     the process's own watchdog fails the run (`run.watchdog`)
    a process waits long        the run continues while any process computes; where all of them wait, that is a deadlock, and the failure
                                names each one's channels

Decision: the process that hosts the first stage decides where to stop, counted in forwards since the run's start. Every
stage stops before its forward of that number, so the cut is the same wherever the others were when they learned of it.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from threading import Event, Thread
from typing import Any

import attrs
from attrs import define, frozen

from petra_graph.errors import Interrupted
from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.store import FINAL, STORE_ENDED, RunStore, StoreGone, first_line
from petra_graph.runtime.system import AwakeTime, Waker, until
from petra_graph.runtime.world import World

_HEARTBEAT_SECONDS = 0.25
_GRACE_SECONDS = 3.0
"""From a failure until a process that is still busy is ended, and from a lost connection until its cause must be known."""
_SILENCE_SECONDS = 30.0
_PATIENCE_SECONDS = 45.0
"""Longer than a dead process on another machine takes to be detected."""
_GONE = "has gone without a word", "it was killed: by a signal, or by the system for want of memory"
_SILENT = "it is stopped, or its machine is: see whether that answers, and what its log says"


@define(eq=False)
class OperationStatus:
    """The present operation of a process, or its wait."""

    program: StageProgram
    operation: str
    """A verb of `program.schedule`, or "evaluation"."""
    micro_batch: int
    """Counted from the run's start; of an evaluation, its batches."""
    since: float
    """On this process's monotonic clock, in seconds."""
    channel: str | None = None
    """The channels or event that it waits for; None: it computes."""

    @property
    def stage(self) -> str:
        return f"stage {self.program.index} ({', '.join(self.program.nodes)})"

    @property
    def task(self) -> str:
        """The operation and its micro-batch or batch, as people read them."""
        what = "batch" if self.operation == "evaluation" else "micro-batch"
        return f"{self.operation} of {what} {self.micro_batch}"

    def __str__(self) -> str:
        """Write stage, operation, micro-batch and wait."""
        text = f"{self.stage}, {self.task}"
        return text if self.channel is None else f"{text}, waiting on {self.channel}"


@frozen(kw_only=True)
class Failure:
    """The first failure of a run, on any process."""

    rank: int
    """The process that failed."""
    problems: Sequence[Sequence[str]]
    """Messages with their hints."""
    exit_code: int = 1
    lost: bool = False
    """The process has died, or does not answer."""
    traceback: str = ""


class Failed(Exception):
    """The run has failed, in this process or another one."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class Supervisor:
    """What a process tells the rest of its run and is told while it trains; this one is of a run in one process, which has no rest."""

    watches = False
    """Whether the status and failures are looked at during operations."""

    def __init__(self) -> None:
        self.status: OperationStatus | None = None
        """What this process does or waits for; set by the scheduler."""
        self.starting = False
        """Whether this process prepares the run: there are no stages yet that could stop."""
        self.stop_signal: str | None = None
        """The signal by which a user, anywhere, asked to stop."""
        self.stop_at: int | None = None
        """Forwards after which every stage stops."""

    def ask(self, signal_name: str) -> None:
        """Ask all processes to stop between two micro-batches; may be called by a signal handler."""
        self.stop_signal = self.stop_signal or signal_name

    def stop_after(self, forwards: int) -> None:
        """Decide where all stages stop; only the process that hosts the first stage calls this."""
        self.stop_at = forwards

    def check(self) -> None:
        """Raise `Failed` if the run has failed elsewhere."""

    def answered(self, what: str, ranks: Collection[int] = ()) -> AbstractContextManager[None]:
        """Return a context in which torch waits for something of other processes."""
        return nullcontext()

    def sleep(self) -> None:
        """Sleep until a message, room, a request or a failure has come; nothing can come from elsewhere here."""
        cause = "a bug in the schedule, or a checkpoint that another program has changed"
        raise RuntimeError(f"every stage waits ({self.status}): {cause}")


class Watchdog(Supervisor):
    """Watches one process, and the others on its behalf."""

    watches = True

    def __init__(self, world: World) -> None:
        super().__init__()
        self.waker = Waker()
        """Wakes this process."""
        self.limit_seconds = float("inf")
        """The longest that one operation may take."""
        self.failure: Failure | None = None
        self.on_stuck: Callable[[Failure], object] = lambda _: None
        """Called in the watchdog's thread where a failure has not ended the process in time; does not return."""
        self.stages: Sequence[Sequence[int]] = ((),) * world.size
        """Indices of each rank's stages, once they are known."""
        self._world, self._parent = world, os.getppid()
        world.check = self.check
        self.store = world.another_connection()
        """A connection for the watchdog's thread alone."""
        self._launch = self.store.beside(world.rank_info.launch)
        self._latest: OperationStatus | None = None
        """The latest status, kept while the process runs no stage."""
        self._suspect: Failure | None = None
        """That a channel's other end does not answer."""
        self._awake, self._now = AwakeTime(), 0.0
        """What lasts too long does so while this process is awake, by its latest heartbeat."""
        self._seen: dict[str, tuple[object, float]] = {}
        """What heartbeats have seen, and since when."""
        self._ends: dict[int, int] = {}
        """Descriptors that become readable when another process of this machine ends, with its rank."""
        for rank, other in enumerate(world.neighbours):
            if rank != world.rank and world.share_machine(rank):
                with suppress(OSError):  # it has ended already: its heartbeats will be missed
                    self._ends[os.pidfd_open(other.process)] = rank
        self._closing = Event()
        self._thread = Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    # --- called by the other thread -----------------------------------------------------------------------------------

    def check(self) -> None:
        if self.failure is not None:
            raise Failed(self.failure)

    def sleep(self) -> None:
        self.waker.wait()

    def stop_after(self, forwards: int) -> None:
        """Decide where all stages stop, and tell the other processes."""
        self.stop_signal = self.stop_signal or "SIGINT"
        self.stop_at = forwards
        self._world.store.set("stop", [forwards, self.stop_signal])

    def lost(self, channel: str, rank: int, error: Exception) -> None:
        """Note that a channel's other end does not answer; the cause may be published within the grace period."""
        message = f"rank {self._world.rank}: {channel}: rank {rank} does not answer any more: {first_line(error)}"
        self._suspect = Failure(rank=rank, lost=True, problems=((message, ""),))

    @contextmanager
    def answered(self, what: str, ranks: Collection[int] = ()) -> Iterator[None]:
        """Within the context, torch waits for something of some ranks, or all; where one does not answer, the watchdog learns which one, and why.

        Failed: it has learned it; RuntimeError: what torch raised, where no other process has failed.
        """
        try:
            yield
        except RuntimeError as error:
            others = [rank for rank in ranks if rank != self._world.rank]
            if len(others) == 1:
                self.lost(what, others[0], error)
            until(self.check, _PATIENCE_SECONDS)
            raise

    def report(self, failure: Failure, store: RunStore | None = None) -> Failure:
        """Publish a failure; return the first one that any process published. The watchdog's thread has a store of its own."""
        with suppress(StoreGone):
            failure = Failure(**(store or self._world.store).set_default("failure", attrs.asdict(failure)))
        self._accept(failure)
        return failure

    def retire(self) -> None:
        self._closing.set()

    def close(self) -> None:
        self.retire()
        self._thread.join()

    def without_store(self, error: Exception) -> Failure:
        """Return the failure to report where the store does not answer: whether the process that kept it has died."""
        rank_info = self._world.rank_info
        keeper = [descriptor for descriptor, rank in self._ends.items() if rank == 0 and not rank_info.hosted]
        if keeper and select.select(keeper, [], [], _GRACE_SECONDS)[0]:
            return self._lost(0, *_GONE)
        message = f"rank {self._world.rank}: the run's store at {rank_info.address} has gone: {first_line(error)}"
        return self._end_of_launch(message, STORE_ENDED)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        ends = select.poll()
        for descriptor in self._ends:
            ends.register(descriptor, select.POLLIN)
        while not self._closing.is_set():
            gone = [self._ends[descriptor] for descriptor, _ in ends.poll(_HEARTBEAT_SECONDS * 1000)]
            if self._closing.is_set():
                return
            try:
                self._heartbeat(gone)
            except StoreGone as error:
                self._accept(self.without_store(error))
            if gone:
                time.sleep(_HEARTBEAT_SECONDS)
            self._enforce()

    def _heartbeat(self, gone: Sequence[int]) -> None:
        self._now = self._awake.seconds
        store, status, rank = self.store, self.status, self._world.rank
        self._latest = latest = status or self._latest
        seconds = 0.0 if status is None else self._lasting("status", status.since)
        beat = {"at": time.time(), "status": latest and str(latest), "seconds": seconds}
        store.set(f"status/{rank}", {**beat, "waits": status is not None and status.channel is not None})
        if self.failure is None and (known := store.get("failure")) is not None:
            self._accept(Failure(**known))
        if self.failure is not None:
            return
        self._exchange_requests()
        for lost in gone:
            self._fail(self._lost(lost, *_GONE))
        if os.getppid() != self._parent:
            self._fail(self._end_of_launch("the launcher has gone", ""))
        # Every rank is the next one of some rank, which looks whether it has a heartbeat.
        other = (rank + 1) % self._world.size
        beat_of_other = store.get(f"status/{other}")
        if self._lasting("heartbeat", beat_of_other and beat_of_other["at"]) > _SILENCE_SECONDS:
            self._fail(self._lost(other, f"has been silent for {_SILENCE_SECONDS:g} s", _SILENT))
        if status is not None and seconds > self.limit_seconds:
            self._judge_duration(status, seconds)
        if self._suspect is not None and self._lasting("suspect", self._suspect) > _GRACE_SECONDS:
            self._fail(self._suspect)

    def _lasting(self, name: str, value: object) -> float:
        """Return for how many seconds heartbeats have seen this value."""
        if name not in self._seen or self._seen[name][0] != value:
            self._seen[name] = value, self._now
        return self._now - self._seen[name][1]

    def _exchange_requests(self) -> None:
        """Hand on a request to stop, and learn of one, and where to stop."""
        if (asked := self.stop_signal or self.store.get("asked") or self._launch.get("asked")) is None:
            return
        if self.stop_signal is None:
            self.stop_signal = asked
            self.waker.wake()
        self.store.set("asked", asked)
        self._launch.set(f"heard/{self._world.rank}", True)
        if self.stop_at is None and (stop := self.store.get("stop")) is not None:
            self.stop_at = stop[0]
            self.waker.wake()
        if self.starting:
            self._launch.set(FINAL, Interrupted.exit_code)
            self._fail(self._end_of_launch("interrupted", ""))

    def _judge_duration(self, status: OperationStatus, seconds: float) -> None:
        """Fail the run where an operation takes too long, or where every process waits, which can never end."""
        rank = self._world.rank
        if status.channel is None:
            message = f"rank {rank}: {status} has taken {seconds:.0f} s, and run.watchdog allows {self.limit_seconds:g}"
            hint = "see what hangs in it, or raise run.watchdog"
        else:
            of_all: list[Any] = [self.store.get(f"status/{other}") for other in range(self._world.size)]
            if not all(one and one["waits"] and one["seconds"] >= self.limit_seconds / 2 for one in of_all):
                return  # Some process computes, or did a moment ago.
            chain = "; ".join(f"rank {at}: {one['status']}" for at, one in enumerate(of_all))
            message = f"all wait for one another for more than {self.limit_seconds:g} s (run.watchdog): {chain}"
            hint = "this is a bug: please report it"
        self._fail(Failure(rank=rank, problems=((message, hint),)))

    def _enforce(self) -> None:
        if self.failure is not None and self._lasting("failure", self.failure) > _GRACE_SECONDS:
            self.on_stuck(self.failure)

    def _fail(self, failure: Failure) -> None:
        self.report(failure, self.store)

    def _lost(self, rank: int, how: str, hint: str) -> Failure:
        """Return the failure of a run of which a process has ended, or does not answer."""
        process, known = self._world.neighbours[rank], None
        with suppress(StoreGone):  # it may have died with the process
            known = self.store.get(f"status/{rank}")
        did, own = known["status"] if known else None, self.stages[rank]
        stages = f"stages {own[0]} to {own[-1]}" if len(own) > 1 else f"stage {own[0]}" if own else "no stage"
        message = f"rank {rank} ({stages}; process {process.process} on {process.host}) {how}"
        if known is not None and did is not None:
            message += f"; last heard of {max(0.0, time.time() - known['at']):.1f} s ago in {did}"
        return Failure(rank=rank, lost=True, problems=((message, hint),))

    def _end_of_launch(self, message: str, hint: str) -> Failure:
        """Return the failure of a run whose launcher has ended: a user who asked to stop may have insisted."""
        code = 1 if self.stop_signal is None else Interrupted.exit_code
        return Failure(rank=self._world.rank, problems=((message, hint),), exit_code=code)

    def _accept(self, failure: Failure) -> None:
        if self.failure is None:
            self.failure = failure
            self.waker.wake()

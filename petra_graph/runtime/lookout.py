"""A thread that looks after one process of a run: what the others do, whether they live, whether this one is stuck.

Every beat it says what this process is doing, and looks for what concerns all: a failure, a request to stop, and where
to stop. So every process knows within about a second, whatever its stages do.

    who ends without a word    processes of the same machine see it at once; elsewhere, by the beats of the next rank
    who computes too long      its own lookout says so (`run.watchdog`)
    who waits too long         nobody's fault while somebody whom it waits for, over any number of hops, computes;
                               where all of them wait, that is a deadlock, and each is told with what it waits for

Decision: where to stop is decided by the process that feeds the first stage, and counted in forwards since the run's start. Every
stage stops before its forward of that number, so the cut is the same wherever the others were when they heard of it.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import torch.distributed as dist

from petra_graph.runtime.bell import Bell
from petra_graph.runtime.failure import Doing, Failure, stages_text
from petra_graph.runtime.world import World

_BEAT_SECONDS = 0.25
_SILENCE_SECONDS = 30.0
_GRACE_SECONDS = 3.0
"""From hearing of a failure until a process that is still busy is ended; and from a lost connection to its reason."""


class Failed(Exception):
    """The run has failed, here or elsewhere: this process stops."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class Lookout:
    """One process's view of the others."""

    def __init__(self, world: World, bell: Bell) -> None:
        self.bell = bell
        self.stages: tuple[tuple[int, ...], ...] = ((),) * world.size
        """Numbers of each rank's stages, once they are known."""
        self.limit_seconds = float("inf")
        """Of one operation."""
        self.doing: Doing | None = None
        """Set by the runtime, at every operation and wait."""
        self.asked: str | None = None
        """The signal by which somebody, anywhere, asked to stop."""
        self.stop_at: int | None = None
        """Forwards after which every stage stops."""
        self.failure: Failure | None = None
        self.on_stuck: Callable[[Failure], None] = lambda _: None
        """Called in this thread where a failure did not end the process in time; does not return."""
        self._world = world
        self.facts = world.another_connection()
        """For this thread alone."""
        self._parent = os.getppid()
        self._latest: Doing | None = None
        """What this process did last, also when it does nothing of a stage."""
        self._told_ask = False
        self._heard: float | None = None
        self._suspect: tuple[float, Failure] | None = None
        self._beats: tuple[float, Any] = (time.monotonic(), None)
        self._watched = {descriptor: rank for rank in range(world.size) if (descriptor := self._descriptor(rank))}
        self._closing = Event()
        self._thread = Thread(target=self._run, name="lookout", daemon=True)
        self._thread.start()

    # --- called by the other thread -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Stop here if the run has failed.

        Raises:
            Failed: it has.
        """
        if self.failure is not None:
            raise Failed(self.failure)

    def ask(self, signal_name: str) -> None:
        """Ask all processes to stop between two micro-batches; may be called by a signal handler."""
        self.asked = self.asked or signal_name

    def stop_after(self, forwards: int) -> None:
        """Decide where all stop; only the process that feeds the first stage does."""
        self.asked = self.asked or "SIGINT"
        self.stop_at = forwards
        self._world.facts.tell("stop", [forwards, self.asked])

    def lost(self, lane: str, rank: int, error: Exception) -> None:
        """Say that a lane's other end does not answer; its reason may yet come."""
        line = str(error).partition("\n")[0]
        message = f"rank {self._world.rank}: {lane}: rank {rank} does not answer any more: {line}"
        self._suspect = (time.monotonic(), Failure(rank=rank, lost=True, problems=((message, ""),)))

    def report(self, failure: Failure) -> Failure:
        """Tell all of a failure; return the first one that anybody told."""
        return self._settle(self._world.facts.tell_first, failure)

    def retire(self) -> None:
        """Look after nothing any more, as soon as may be."""
        self._closing.set()

    def close(self) -> None:
        """Look after nothing any more, and return when that is so."""
        self.retire()
        self._thread.join()

    def without_store(self, error: Exception) -> Failure:
        """Return what is told where the store does not answer any more: whether the process that kept it has gone."""
        keeper = (
            None if self._world.place.hosted else next((at for at, rank in self._watched.items() if rank == 0), None)
        )
        if keeper is not None and select.select([keeper], [], [], _GRACE_SECONDS)[0]:
            return self._gone(0)
        line = str(error).partition("\n")[0]
        message = f"rank {self._world.rank}: the run's store at {self._world.place.address} has gone: {line}"
        hint = "its launcher, or where there is none rank 0, has ended"
        return Failure(rank=self._world.rank, problems=((message, hint),))

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        poll = select.poll()
        for descriptor in self._watched:
            poll.register(descriptor, select.POLLIN)
        while not self._closing.is_set():
            gone = [self._watched[descriptor] for descriptor, _ in poll.poll(_BEAT_SECONDS * 1000)]
            if self._closing.is_set():
                return
            try:
                self._beat(gone)
            except (dist.DistError, RuntimeError) as error:
                self._hear(self.without_store(error))
            if gone:
                time.sleep(_BEAT_SECONDS)
            self._insist()

    def _beat(self, gone: list[int]) -> None:
        facts, doing, rank = self.facts, self.doing, self._world.rank
        self._latest = latest = doing or self._latest
        seconds = 0.0 if doing is None else time.monotonic() - doing.since
        facts.tell(
            f"status/{rank}",
            {
                "at": time.time(),
                "doing": None if latest is None else {**latest.record(), "text": str(latest)},
                "seconds": seconds,
                "waits_for": [] if doing is None else doing.waits_for,
            },
        )
        if self.failure is None and (told := facts.known("failure")) is not None:
            self._hear(Failure.of(told))
        if self.failure is not None:
            return
        self._pass_on_requests()
        for lost in gone:
            self._tell(self._gone(lost))
        if os.getppid() != self._parent:
            self._tell(Failure(rank=rank, problems=(("the launcher has gone", ""),)))
        self._look_after_next()
        if doing is not None and seconds > self.limit_seconds:
            self._look_into(doing, seconds)
        if self._suspect is not None and time.monotonic() - self._suspect[0] > _GRACE_SECONDS:
            self._tell(self._suspect[1])

    def _pass_on_requests(self) -> None:
        if self.asked is not None and not self._told_ask:
            self.facts.tell("asked", self.asked)
            self._told_ask = True
        elif self.asked is None and (asked := self.facts.known("asked")) is not None:
            self.asked, self._told_ask = asked, True
            self.bell.ring()
        if self.stop_at is None and self.asked is not None and (stop := self.facts.known("stop")) is not None:
            self.stop_at = stop[0]
            self.bell.ring()

    def _look_into(self, doing: Doing, seconds: float) -> None:
        """Tell of an operation that takes too long, or of waits that can never end."""
        rank = self._world.rank
        if doing.lane is None:
            message = f"rank {rank}: {doing} has taken {seconds:.0f} s, and run.watchdog allows {self.limit_seconds:g}"
            hint = "see what hangs in it, or raise run.watchdog"
            self._tell(Failure(rank=rank, problems=((message, hint),), where=doing.record()))
            return
        waiting: dict[int, str] = {rank: str(doing)}
        ahead = list(doing.waits_for)
        while ahead:
            other = ahead.pop()
            if other in waiting:
                continue
            status = self.facts.known(f"status/{other}")
            if status is None or not status["waits_for"] or status["seconds"] < self.limit_seconds / 2:
                return  # It computes, or did a moment ago.
            waiting[other] = status["doing"]["text"]
            ahead.extend(status["waits_for"])
        chain = "; ".join(f"rank {at}: {text}" for at, text in sorted(waiting.items()))
        message = f"all wait for one another for more than {self.limit_seconds:g} s (run.watchdog): {chain}"
        self._tell(Failure(rank=rank, problems=((message, "this is a bug: please report it"),), where=doing.record()))

    def _look_after_next(self) -> None:
        """Watch the next rank's beats; every rank is some rank's next."""
        other = (self._world.rank + 1) % self._world.size
        status = self.facts.known(f"status/{other}")
        now = time.monotonic()
        beat = None if status is None else status["at"]
        if beat != self._beats[1]:
            self._beats = (now, beat)
        elif now - self._beats[0] > _SILENCE_SECONDS:
            self._tell(self._gone(other, f"has been silent for {_SILENCE_SECONDS:g} s"))

    def _gone(self, rank: int, how: str = "has gone without a word") -> Failure:
        process = self._world.neighbours[rank]
        status = None
        with suppress(dist.DistError, RuntimeError):  # The store may have gone with it.
            status = self.facts.known(f"status/{rank}")
        did = status["doing"] if status else None
        stages = stages_text(self.stages[rank])
        message = f"rank {rank} ({stages}; process {process.process} on {process.host}) {how}"
        if status is not None and did is not None:
            before = max(0.0, time.time() - status["at"])
            message += f"; last heard of {before:.1f} s ago in {did['text']}"
        hint = "it was killed: by a signal, or by the system for want of memory"
        return Failure(rank=rank, lost=True, problems=((message, hint),), where=did)

    def _insist(self) -> None:
        if self._heard is not None and time.monotonic() - self._heard > _GRACE_SECONDS:
            assert self.failure is not None
            self.on_stuck(self.failure)

    def _tell(self, failure: Failure) -> None:
        self._settle(self.facts.tell_first, failure)

    def _settle(self, tell_first: Callable[[str, Any], Any], failure: Failure) -> Failure:
        with suppress(dist.DistError, RuntimeError):
            failure = Failure.of(tell_first("failure", failure.json()))
        self._hear(failure)
        return failure

    def _hear(self, failure: Failure) -> None:
        if self.failure is None:
            self.failure, self._heard = failure, time.monotonic()
            self.bell.ring()

    def _descriptor(self, rank: int) -> int | None:
        """Return what becomes readable when another process of this machine ends."""
        world = self._world
        if rank == world.rank or not world.share_machine(rank):
            return None
        with suppress(OSError):
            return os.pidfd_open(world.neighbours[rank].process)
        return None

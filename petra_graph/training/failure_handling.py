"""How a process of several ends when the run has failed: one tells why, and writes it down.

The process with the head tells it, or where that has gone or there is no directory yet, another. It asks the others what
only they know: where numbers stopped being finite.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import attrs
import torch.distributed as dist
from attrs import define

from petra_graph.errors import (
    FailedElsewhere,
    NoFeasiblePlan,
    PetraGraphError,
    PluginError,
    Problem,
    RunFailed,
    SpecError,
)
from petra_graph.executor.stage import StageExecutor
from petra_graph.runtime.control.failure import Failure
from petra_graph.runtime.control.store import RunStore
from petra_graph.runtime.control.watchdog import Failed, Watchdog
from petra_graph.runtime.control.world import World, hard_exit
from petra_graph.training.diagnose import NotFinite, StageState, stage_states
from petra_graph.training.loop import Reached
from petra_graph.training.prepare import Prepared
from petra_graph.training.run_record import RunRecord, problems_of

_TOLD_SECONDS = 10.0
"""How long others wait for the one that tells of a failure."""
_ANSWER_SECONDS = 2.0
"""How long that one waits for what others know."""
_LOOK_SECONDS = 0.05
_ERRORS = {kind.exit_code: kind for kind in (RunFailed, SpecError, NoFeasiblePlan, PluginError)}


@define(kw_only=True)
class FailureHandling:
    """What this process knows of the run, however that ends."""

    world: World
    watchdog: Watchdog
    prepared: Prepared | None = None
    ranks: Sequence[int] = ()
    """Of each stage of the first replica, once they are known."""
    hosted: Sequence[StageExecutor] = ()
    record: RunRecord | None = None
    """Where the head is, once there is a directory."""
    under_way: bool = False
    """Whether all are ready to train, so that there is one."""

    def fail(self, error: Exception) -> NoReturn:
        """End since something was raised here, or elsewhere.

        Raises:
            PetraGraphError: this process tells it.
            FailedElsewhere: another one does.
        """
        failure = error.failure if isinstance(error, Failed) else self.watchdog.report(self._told(error))
        if failure.asks_about is not None:
            own = [attrs.asdict(state) for state in stage_states(self.hosted, failure.asks_about)]
            self.world.store.set(f"states/{self.world.rank}", own)
            if failure.rank == self.world.rank and isinstance(error, NotFinite):
                failure = self._located(failure, error)
        raised = self._conclude(failure, self.world.store)
        raise raised from (error if failure.rank == self.world.rank else None)

    def end_at_once(self, failure: Failure) -> NoReturn:
        """End from another thread, as the main thread does not; what is to be told is told here."""
        raised = self._conclude(failure, self.watchdog.store)
        if isinstance(raised, PetraGraphError):
            sys.stderr.write("\n".join(map(str, raised.problems)) + "\n")
        hard_exit(failure.exit_code)

    def _located(self, failure: Failure, error: NotFinite) -> Failure:
        """Say where numbers stopped being finite, among all stages that still answer."""
        said: dict[int, list[StageState]] = {}
        for rank in dict.fromkeys(self.ranks):
            with suppress(RunFailed, RuntimeError):
                told = self.world.store.wait(f"states/{rank}", _ANSWER_SECONDS, f"rank {rank} does not answer")
                said[rank] = [StageState(**{**state, "nodes": tuple(state["nodes"])}) for state in told]
        states = sorted((state for states in said.values() for state in states), key=lambda state: state.index)
        problem = error.located(states)
        return attrs.evolve(failure, problems=((problem.message, problem.hint),))

    def _told(self, error: Exception) -> Failure:
        if isinstance(error, dist.DistError):
            return self.watchdog.without_store(error)
        problems = problems_of(error)
        doing = self.watchdog.status
        located = isinstance(error, SpecError)
        return Failure(
            rank=self.world.rank,
            problems=tuple(
                (
                    str(attrs.evolve(problem, hint="")) if located else f"rank {self.world.rank}: {problem.message}",
                    problem.hint,
                )
                for problem in problems
            ),
            exit_code=error.exit_code if isinstance(error, PetraGraphError) else 1,
            where=None if doing is None else doing.record(),
            traceback="".join(traceback.format_exception(error)),
            asks_about=error.micro_batch if isinstance(error, NotFinite) else None,
        )

    def _conclude(self, failure: Failure, store: RunStore) -> PetraGraphError | FailedElsewhere:
        """Write the failure down if that is this process's business, else wait until it is done.

        Args:
            failure: the first one of all.
            store: a connection that no other thread may be waiting on; it may be broken.
        """
        try:
            return self._concluded(failure, store)
        finally:
            self.watchdog.retire()
            self.world.shutdown(store, missing=int(failure.lost))

    def _concluded(self, failure: Failure, store: RunStore) -> PetraGraphError | FailedElsewhere:
        directory = None if self.record is None else str(self.record.directory)
        with suppress(RuntimeError):
            directory = directory or store.get("directory")
        if self.world.rank != self._teller(failure, started=self.under_way or directory is not None):
            _wait_until_told(store)
            return FailedElsewhere(failure.exit_code)
        problems = [Problem(message=message, hint=hint) for message, hint in failure.problems]
        error = _ERRORS.get(failure.exit_code, RunFailed)(problems)
        if directory is not None and self.prepared is not None:
            record = self.record or RunRecord(
                prepared=self.prepared, directory=Path(directory), processes=self.world.size
            )
            statuses: list[Any] = []
            with suppress(RuntimeError):
                record.told = Reached(**(store.get("reached") or {}))
                statuses += [store.get(f"status/{rank}") for rank in range(self.world.size)]
            where = {**failure.json(), "ranks": statuses}
            record.record_failure(error, failure.traceback or f"{error}\n", where)
        with suppress(RuntimeError):
            store.set("told", True)
        return error

    def _teller(self, failure: Failure, *, started: bool) -> int:
        """Return the rank that tells of a failure: the head's once there is a directory, unless it has gone."""
        first = self.ranks[-1] if started and self.ranks else failure.rank
        if not (failure.lost and first == failure.rank):
            return first
        return next(rank for rank in range(self.world.size) if rank != failure.rank)


def _wait_until_told(store: RunStore) -> None:
    end = time.monotonic() + _TOLD_SECONDS
    with suppress(RuntimeError):
        while store.get("told") is None and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)

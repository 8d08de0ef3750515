"""The end of one process of several when the run has failed: one process reports the failure, the others wait for it.

The process with the head reports, or another one where that process has gone or the run directory does not exist yet.
Every process publishes the state of its own stages, so that the report says where numbers stopped being finite.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import attrs
import torch.distributed as dist
from attrs import frozen

from petra_graph.errors import (
    FailedOnAnotherProcess,
    Interrupted,
    NoFeasiblePlan,
    PetraGraphError,
    Problem,
    RunFailed,
    RunFailedByPlugin,
    SpecError,
    printable,
)
from petra_graph.record.run_directory import run_directory
from petra_graph.runtime.control.awake_time import AwakeTime
from petra_graph.runtime.control.failure import Failure
from petra_graph.runtime.control.run_store import RunStore, StoreGone
from petra_graph.runtime.control.start_up import hard_exit
from petra_graph.runtime.control.watchdog import Failed, Watchdog
from petra_graph.runtime.control.world import World
from petra_graph.training.loop.not_finite import NotFinite, StageState, stage_states
from petra_graph.training.loop.peers import Progress
from petra_graph.training.processes.run_process import RunSoFar
from petra_graph.training.record.run_record import RunRecord, problems_of

_REPORT_SECONDS = 10.0
"""How long the other processes wait for the report."""
_ANSWER_SECONDS = 2.0
"""How long the reporting process waits for the states of the others' stages."""
_LOOK_SECONDS = 0.05
_ERRORS = {kind.exit_code: kind for kind in (RunFailed, SpecError, NoFeasiblePlan, RunFailedByPlugin)}


@frozen(kw_only=True)
class FailureHandling:
    """The end of this process when the run fails, with what the run has by then."""

    world: World
    watchdog: Watchdog

    def fail(self, error: Exception, so_far: RunSoFar) -> NoReturn:
        """End after an error in this process, or in another one: raise it where this process reports it."""
        failure = error.failure if isinstance(error, Failed) else self.watchdog.report(self._failure(error))
        if failure.asks_about is not None:
            executors = () if so_far.scheduler is None else so_far.scheduler.executors
            own = [attrs.asdict(state) for state in stage_states(executors, failure.asks_about)]
            self.world.store.set(f"states/{self.world.rank}", own)
            if failure.rank == self.world.rank and isinstance(error, NotFinite):
                failure = self._located(failure, error, so_far.ranks)
        raised = self._conclude(failure, self.world.store, so_far)
        raise raised from (error if failure.rank == self.world.rank else None)

    def end_at_once(self, failure: Failure, so_far: RunSoFar) -> NoReturn:
        """End from the watchdog's thread, where the main thread does not end; print the report here."""
        raised = self._conclude(failure, self.watchdog.store, so_far)
        if isinstance(raised, PetraGraphError):
            sys.stderr.write(f"{raised}" + "\n")
        hard_exit(failure.exit_code)

    def _located(self, failure: Failure, error: NotFinite, ranks: Sequence[int]) -> Failure:
        """Return the failure with the stage where numbers stopped being finite, among all processes that still answer."""
        states: list[StageState] = []
        for rank in dict.fromkeys(ranks):
            with suppress(RunFailed, RuntimeError):
                found = self.world.store.wait(f"states/{rank}", _ANSWER_SECONDS, f"rank {rank} does not answer")
                states += [StageState(**{**state, "nodes": tuple(state["nodes"])}) for state in found]
        problem = error.located(sorted(states, key=lambda state: state.index))
        return attrs.evolve(failure, problems=((problem.message, problem.hint),))

    def _failure(self, error: Exception) -> Failure:
        if isinstance(error, StoreGone | dist.DistError):
            return self.watchdog.without_store(error)
        problems = problems_of(error)
        status = self.watchdog.status
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
            where=None if status is None else status.record(),
            traceback="".join(traceback.format_exception(error)),
            asks_about=error.micro_batch if isinstance(error, NotFinite) else None,
        )

    def _conclude(
        self, failure: Failure, store: RunStore, so_far: RunSoFar
    ) -> PetraGraphError | FailedOnAnotherProcess | Interrupted:
        """Report the failure if this process is to do so, else wait for the report; `store` is a connection that may be broken."""
        record, directory, prepared, trained = so_far.record, so_far.directory, so_far.prepared, so_far.trained
        try:
            if failure.exit_code == Interrupted.exit_code:
                if record is not None:
                    record.summarise("interrupted", trained, weights=None)
                if self.world.rank == 0 and so_far.scheduler is None:
                    made = "" if directory is None else f"; results: {directory}"
                    sys.stderr.write(printable(f"interrupted during the start{made}\n"))
                return Interrupted()
            if directory is None and prepared is not None:
                with suppress(RuntimeError, RunFailed):
                    name = store.get("directory")
                    directory = name and run_directory(prepared.spec.run.directory, name)
            started = so_far.scheduler is not None or directory is not None
            if self.world.rank != self._reporter(failure, so_far.ranks if started else ()):
                _wait_for_report(store)
                return FailedOnAnotherProcess(failure.exit_code)
            problems = [Problem(message=message, hint=hint) for message, hint in failure.problems]
            error = _ERRORS.get(failure.exit_code, RunFailed)(problems)
            if directory is not None and prepared is not None:
                record = record or RunRecord.of(directory, prepared, self.world.size)
                statuses: list[Any] = []
                with suppress(RuntimeError):
                    if isinstance(trained, Progress):
                        trained = Progress(**(store.get("progress") or {}))
                    statuses += [store.get(f"status/{rank}") for rank in range(self.world.size)]
                where = {**failure.json(), "ranks": statuses}
                record.record_failure(error, failure.traceback or f"{error}\n", trained, where)
            with suppress(RuntimeError):
                store.set("reported", True)
            return error
        finally:
            self.watchdog.retire()
            self.world.shutdown(store, missing=int(failure.lost))

    def _reporter(self, failure: Failure, ranks: Sequence[int]) -> int:
        """Return the rank that reports: the last of `ranks` once there is a directory, unless that process has gone."""
        first = ranks[-1] if ranks else failure.rank
        if not (failure.lost and first == failure.rank):
            return first
        return next(rank for rank in range(self.world.size) if rank != failure.rank)


def _wait_for_report(store: RunStore) -> None:
    waits = AwakeTime()
    with suppress(RuntimeError):
        while store.get("reported") is None and waits.seconds < _REPORT_SECONDS:
            time.sleep(_LOOK_SECONDS)

"""The end of one process of several: with all others when everything is written, or with the report of a failure.

    rank 0    has measured ------- waits for "complete" --------------- all have arrived, or a few seconds ---- ends
    rank 1    has measured ------- waits for "complete" ------ X        killed: the run is complete nevertheless
    records   says that all have, writes the summary, says "complete" ------ all have arrived --------------- ends

A failure is reported by the process with the head, or by another one if that process has gone or there is no run directory yet; the
others wait for the report. Every process publishes the state of its own stages, so that the report says where numbers stopped being finite.
"""

from __future__ import annotations

import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

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
from petra_graph.record.run_directory import read_json, run_directory
from petra_graph.runtime.failure import Failure
from petra_graph.runtime.store import COMPLETE, RunStore, StoreGone
from petra_graph.runtime.system import hard_exit, stop_requests
from petra_graph.runtime.waiting import AwakeTime
from petra_graph.runtime.watchdog import Failed, Watchdog
from petra_graph.runtime.world import World
from petra_graph.training.evaluation import NotFinite, broken_parameters
from petra_graph.training.run_record import RunRecord, problems_of

if TYPE_CHECKING:
    from petra_graph.training.processes.process import RunProcess

_END_SECONDS = 5.0
"""The longest that a process waits for the others to arrive at the end."""
_REPORT_SECONDS = 10.0
"""The longest that a process waits for another one's report of a failure."""
_ANSWER_SECONDS = 2.0
"""The longest that the reporting process waits for the state of another one's stages."""
_LOOK_SECONDS = 0.01
_ERRORS = {kind.exit_code: kind for kind in (RunFailed, SpecError, NoFeasiblePlan, RunFailedByPlugin)}


@frozen
class ProcessEnd:
    world: World
    watchdog: Watchdog

    # --- everything is written ----------------------------------------------------------------------------------------

    def leave(self, run: RunProcess, *, interrupted: bool) -> None:
        """Return when all processes have come to the end, or will not come any more; the loss of one is no failure from here on.

        The watchdog watches until the end, so that no process waits for one that has gone. A request to stop ends the waits.

        Raises:
            Failed: the run has failed before it was complete.
        """
        world, store, watchdog, records = self.world, self.world.store, self.watchdog, run.ranks[-1]
        code, lost = Interrupted.exit_code if interrupted else 0, None
        asked: list[str] = []
        with stop_requests(asked.append, lambda: hard_exit(code), ends_process=True):
            try:
                if world.rank == records:
                    store.set(COMPLETE, True)
                while store.get(COMPLETE) is None and not self._lost_when_complete(run):
                    time.sleep(_LOOK_SECONDS)
                world.launch.set(COMPLETE, code)

                store.set(f"arrived/{world.rank}", True)
                waits, names = AwakeTime(), [f"arrived/{rank}" for rank in range(world.size)]
                while not all(store.get(name) for name in names):
                    if watchdog.failure is not None or asked or waits.seconds > _END_SECONDS:
                        break
                    time.sleep(_LOOK_SECONDS)
            except StoreGone as error:
                if not _has_summary(run.directory):
                    raise
                lost = watchdog.without_store(error)
            watchdog.close()
        lost = watchdog.failure or lost
        if lost is not None and world.rank == records:
            sys.stderr.write(printable(f"the run is complete, although {lost.problems[0][0]}\n"))
        world.shutdown(store, missing=int(lost is not None))

    def _lost_when_complete(self, run: RunProcess) -> bool:
        """Whether the process that records has gone after it wrote everything; raise `Failed` if it has gone before, or reports a failure."""
        failure = self.watchdog.failure
        lost = failure is not None and failure.rank == run.ranks[-1]
        if lost and _has_summary(run.directory):
            return True
        if lost or self.world.store.get("reported"):
            self.watchdog.check()
        return False

    # --- the run has failed -------------------------------------------------------------------------------------------

    def fail(self, error: Exception, run: RunProcess) -> NoReturn:
        """End after an error in this process, or in another one: raise it if this process reports it."""
        failure = error.failure if isinstance(error, Failed) else self.watchdog.report(self._failure_of(error))
        if failure.exit_code != RunFailed.exit_code:  # to start it again would change nothing
            with suppress(RuntimeError):
                self.world.launch.set("final", failure.exit_code)
        if failure.asks_for_parameters:
            executors = () if run.scheduler is None else run.scheduler.executors
            self.world.store.set(f"broken/{self.world.rank}", list(broken_parameters(executors)))
            if failure.rank == self.world.rank and isinstance(error, NotFinite):
                broken = list[Any]()
                for rank in sorted(set(run.ranks)):  # those that still answer
                    with suppress(RunFailed, RuntimeError):
                        broken += self.world.store.wait(f"broken/{rank}", _ANSWER_SECONDS, f"rank {rank} is silent")
                problem = error.problem(broken)
                failure = attrs.evolve(failure, problems=((problem.message, problem.hint),))
        raised = self._conclude(failure, self.world.store, run)
        raise raised from (error if failure.rank == self.world.rank else None)

    def end_at_once(self, failure: Failure, run: RunProcess) -> NoReturn:
        """End from the watchdog's thread if the main thread does not end; print the report here."""
        raised = self._conclude(failure, self.watchdog.store, run)
        if isinstance(raised, PetraGraphError):
            sys.stderr.write(f"{raised}\n")
        hard_exit(failure.exit_code)

    def _failure_of(self, error: Exception) -> Failure:
        if isinstance(error, StoreGone | dist.DistError):
            return self.watchdog.without_store(error)
        rank, status = self.world.rank, self.watchdog.status
        problems = []
        for problem in problems_of(error):
            located = str(attrs.evolve(problem, hint=""))
            text = located if isinstance(error, SpecError) else f"rank {rank}: {problem.message}"
            problems.append((text, problem.hint))
        return Failure(
            rank=rank,
            problems=tuple(problems),
            exit_code=error.exit_code if isinstance(error, PetraGraphError) else 1,
            where=None if status is None else status.record(),
            traceback="".join(traceback.format_exception(error)),
            asks_for_parameters=isinstance(error, NotFinite),
        )

    def _conclude(
        self, failure: Failure, store: RunStore, run: RunProcess
    ) -> PetraGraphError | FailedOnAnotherProcess | Interrupted:
        """Report the failure if this process is to do so, else wait for the report; `store` is a connection that may be broken."""
        try:
            if failure.exit_code == Interrupted.exit_code:
                if run.record is not None:
                    run.record.summarise("interrupted", run.trained, weights=None)
                if self.world.rank == 0 and run.scheduler is None:
                    results = "" if run.directory is None else f"; results: {run.directory}"
                    sys.stderr.write(printable(f"interrupted during the start{results}\n"))
                return Interrupted()
            prepared, directory = run.prepared, run.directory
            if directory is None and prepared is not None:
                with suppress(RuntimeError, RunFailed):
                    name = store.get("directory")
                    directory = name and run_directory(prepared.spec.run.directory, name)
            started = run.scheduler is not None or directory is not None
            # The last of the stages' processes reports once there is a directory, unless it is the one that has gone.
            reporter = run.ranks[-1] if started and run.ranks else failure.rank
            if failure.lost and reporter == failure.rank:
                reporter = next(rank for rank in range(self.world.size) if rank != failure.rank)
            if self.world.rank != reporter:
                waits = AwakeTime()
                with suppress(RuntimeError):
                    while store.get("reported") is None and waits.seconds < _REPORT_SECONDS:
                        time.sleep(_LOOK_SECONDS)
                return FailedOnAnotherProcess(failure.exit_code)

            problems = [Problem(message=message, hint=hint) for message, hint in failure.problems]
            error = _ERRORS.get(failure.exit_code, RunFailed)(problems)
            if directory is not None and prepared is not None:
                record = run.record or RunRecord.of(directory, prepared, self.world.size)
                trained, statuses = run.trained, list[Any]()
                with suppress(RuntimeError):
                    if run.record is None:
                        trained = store.get("trained") or trained
                    statuses += [store.get(f"status/{rank}") for rank in range(self.world.size)]
                where = {**failure.json(), "ranks": statuses}
                record.record_failure(error, trained, failure.traceback or f"{error}\n", where)
            with suppress(RuntimeError):
                store.set("reported", True)
            return error
        finally:
            self.watchdog.retire()
            self.world.shutdown(store, missing=int(failure.lost))


def _has_summary(directory: Path | None) -> bool:
    """Whether the run's last file is there, which a run under way does not have."""
    with suppress(SpecError):
        summary = None if directory is None else read_json(directory / "summary.json", dict)
        return summary is not None and summary.get("status") != "failed"
    return False

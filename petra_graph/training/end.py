"""The end of one process of several: with all others when everything is written, or with the report of a failure.

    rank 0    has measured ------- waits for "complete" --------------- all have arrived, or a few seconds ---- ends
    rank 1    has measured ------- waits for "complete" ------ X        killed: the run is complete nevertheless
    records   says that all have, writes the summary, says "complete" ------ all have arrived --------------- ends

They wait for one another, since the store may end with the first of them: its launcher has nothing more to do then.
A failure is reported by the process with the head, or by another one if that process has gone or there is no run directory yet; the
others wait for the report.
"""

from __future__ import annotations

import sys
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import torch.distributed as dist

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
from petra_graph.record.weights import SUMMARY
from petra_graph.runtime.failure import Failure
from petra_graph.runtime.store import COMPLETE, RunStore, StoreGone
from petra_graph.runtime.system import hard_exit, stop_requests
from petra_graph.runtime.waiting import AwakeTime
from petra_graph.runtime.watchdog import Failed
from petra_graph.training.run_record import RunRecord, problems_of

if TYPE_CHECKING:
    from petra_graph.training.process import OneOfSeveral

_END_SECONDS = 5.0
"""The longest that a process waits for the others to arrive at the end."""
_REPORT_SECONDS = 10.0
"""The longest that a process waits for another one's report of a failure."""
_LOOK_SECONDS = 0.01
_ERRORS = {kind.exit_code: kind for kind in (RunFailed, SpecError, NoFeasiblePlan, RunFailedByPlugin)}


def leave(process: OneOfSeveral, *, interrupted: bool) -> None:
    """Return when all processes have come to the end, or will not come any more; the loss of one is no failure from here on.

    The watchdog watches until the end, so that no process waits for one that has gone. A request to stop ends the waits.

    Raises:
        Failed: the run has failed before it was complete.
    """
    world, store, watchdog = process.world, process.world.store, process.watchdog
    code, lost = Interrupted.exit_code if interrupted else 0, None
    asked: list[str] = []
    with stop_requests(asked.append, lambda: hard_exit(code), ends_process=True):
        try:
            if process.records:
                store.set(COMPLETE, True)
            while store.get(COMPLETE) is None:
                # At the end, losing a process that does not record harms nothing, unless a failure is reported.
                failure = watchdog.failure
                if (failure is not None and failure.rank == process.ranks[-1]) or store.get("reported"):
                    watchdog.check()
                time.sleep(_LOOK_SECONDS)
            world.launch.set(COMPLETE, code)

            store.set(f"arrived/{world.rank}", True)
            waits, names = AwakeTime(), [f"arrived/{rank}" for rank in range(world.size)]
            while not (all(map(store.get, names)) or watchdog.failure or asked or waits.seconds > _END_SECONDS):
                time.sleep(_LOOK_SECONDS)
        except StoreGone as error:
            # Rank 0, which may keep the store, ends once the run is complete; the summary is a run's last file.
            with suppress(SpecError):
                summary = process.directory and read_json(process.directory / SUMMARY, dict)
                if summary and summary.get("status") != "failed":
                    lost = watchdog.without_store(error)
            if lost is None:
                raise
        watchdog.close()
    lost = watchdog.failure or lost
    if lost is not None and process.records:
        sys.stderr.write(printable(f"the run is complete, although {lost.problems[0][0]}\n"))
    world.shutdown(store, missing=int(lost is not None))


# --- the run has failed -------------------------------------------------------------------------------------------------


def fail(process: OneOfSeveral, error: Exception) -> NoReturn:
    """End after an error in this process, or in another one: raise it if this process reports it."""
    world = process.world
    failure = error.failure if isinstance(error, Failed) else process.watchdog.report(_failure_of(process, error))
    if failure.exit_code != RunFailed.exit_code:  # to start it again would change nothing
        with suppress(RuntimeError):
            world.launch.set("final", failure.exit_code)
    raised = _conclude(process, failure, world.store)
    raise raised from (error if failure.rank == world.rank else None)


def end_at_once(process: OneOfSeveral, failure: Failure) -> NoReturn:
    """End from the watchdog's thread if the main thread does not end; print the report here."""
    raised = _conclude(process, failure, process.watchdog.store)
    if isinstance(raised, PetraGraphError):
        sys.stderr.write(f"{raised}\n")
    hard_exit(failure.exit_code)


def _failure_of(process: OneOfSeveral, error: Exception) -> Failure:
    if isinstance(error, StoreGone | dist.DistError):
        return process.watchdog.without_store(error)
    rank, status = process.world.rank, process.watchdog.status
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
    )


def _conclude(
    process: OneOfSeveral, failure: Failure, store: RunStore
) -> PetraGraphError | FailedOnAnotherProcess | Interrupted:
    """Report the failure if this process is to do so, else wait for the report; `store` is a connection that may be broken."""
    world, prepared, directory = process.world, process.prepared, process.directory
    try:
        if failure.exit_code == Interrupted.exit_code:
            if process.record is not None:
                process.record.summarise("interrupted", process.trained, weights=None)
            if world.rank == 0 and process.scheduler is None:
                results = "" if directory is None else f"; results: {directory}"
                sys.stderr.write(printable(f"interrupted during the start{results}\n"))
            return Interrupted()
        if directory is None and prepared is not None:
            with suppress(RuntimeError, RunFailed):
                name = store.get("directory")
                directory = name and run_directory(prepared.spec.run.directory, name)
        # The last of the stages' processes reports once there is a directory, unless it is the one that has gone.
        started = process.scheduler is not None or directory is not None
        reporter = process.ranks[-1] if started and process.ranks else failure.rank
        if failure.lost and reporter == failure.rank:
            reporter = next(rank for rank in range(world.size) if rank != failure.rank)
        if world.rank != reporter:
            waits = AwakeTime()
            with suppress(RuntimeError):
                while store.get("reported") is None and waits.seconds < _REPORT_SECONDS:
                    time.sleep(_LOOK_SECONDS)
            return FailedOnAnotherProcess(failure.exit_code)

        problems = [Problem(message=message, hint=hint) for message, hint in failure.problems]
        error = _ERRORS.get(failure.exit_code, RunFailed)(problems)
        if directory is not None and prepared is not None:
            record = process.record or RunRecord.of(directory, prepared, world.size)
            trained, statuses = process.trained, list[Any]()
            with suppress(RuntimeError):
                if process.record is None:
                    trained = store.get("trained") or trained
                statuses += [store.get(f"status/{rank}") for rank in range(world.size)]
            where = {**failure.json(), "ranks": statuses}
            record.record_failure(error, trained, failure.traceback or f"{error}\n", where)
        with suppress(RuntimeError):
            store.set("reported", True)
        return error
    finally:
        process.watchdog.retire()
        world.shutdown(store, missing=int(failure.lost))

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
from petra_graph.runtime.store import COMPLETE, RunStore, StoreGone
from petra_graph.runtime.system import hard_exit, stop_requests
from petra_graph.runtime.waiting import until
from petra_graph.runtime.watchdog import Failed, Failure
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
    world, store, watchdog, prepared = process.world, process.world.store, process.watchdog, process.prepared
    assert prepared is not None
    code, lost = Interrupted.exit_code if interrupted else 0, None
    asked: list[str] = []
    with stop_requests(asked.append, lambda: hard_exit(code), ends_process=True):
        try:
            if interrupted:  # a launcher does not start it again, whatever happens from here on
                world.launch.set("final", code)
            if prepared.records:
                store.set(COMPLETE, True)
            while store.get(COMPLETE) is None:
                # Only the process that records has something left to do, and no more once its last file is written.
                failure = watchdog.failure
                if (failure is not None and failure.rank == prepared.ranks[-1]) or store.get("reported"):
                    if _has_ended(process):
                        break
                    watchdog.check()
                time.sleep(_LOOK_SECONDS)
            world.launch.set(COMPLETE, code)

            store.set(f"arrived/{world.rank}", True)
            names = [f"arrived/{rank}" for rank in range(world.size)]
            until(lambda: all(map(store.get, names)) or watchdog.failure or asked, _END_SECONDS)
        except StoreGone as error:  # rank 0, which may keep the store, ends once the run is complete
            if not _has_ended(process):
                raise
            lost = watchdog.without_store(error)
        watchdog.close()
    lost = watchdog.failure or lost
    if lost is not None and world.rank == _reporter(process, lost):
        sys.stderr.write(printable(f"the run is complete, although {lost.problems[0][0]}\n"))
    world.shutdown(store, missing=int(lost is not None))


def _has_ended(process: OneOfSeveral) -> bool:
    """Whether the run's last file, its summary, has been written; a run that is resumed begins without one."""
    assert process.directory is not None
    with suppress(SpecError):
        summary = read_json(process.directory / SUMMARY, dict)
        return summary is not None and summary["status"] != "failed"
    return False


def _reporter(process: OneOfSeveral, failure: Failure) -> int:
    """Return the process that tells of a failure."""
    prepared = process.prepared
    reporter = failure.rank if prepared is None or process.directory is None else prepared.ranks[-1]
    if failure.lost and reporter == failure.rank:
        reporter = next(rank for rank in range(process.size) if rank != failure.rank)
    return reporter


# --- the run has failed -------------------------------------------------------------------------------------------------


def fail(process: OneOfSeveral, error: Exception) -> NoReturn:
    """End after an error in this process, or in another one: raise it if this process reports it."""
    world, watchdog = process.world, process.watchdog
    if isinstance(error, Failed):
        failure = error.failure
    elif isinstance(error, StoreGone | dist.DistError):
        failure = watchdog.report(watchdog.without_store(error))
    else:
        # A specification's problem says its file and line, any other one the rank that met it.
        located = isinstance(error, SpecError)
        problems = [
            (str(attrs.evolve(one, hint="")) if located else f"rank {world.rank}: {one.message}", one.hint)
            for one in problems_of(error)
        ]
        own = Failure(
            rank=world.rank,
            problems=tuple(problems),
            exit_code=error.exit_code if isinstance(error, PetraGraphError) else 1,
            where=None if watchdog.status is None else watchdog.status.record(),
            traceback="".join(traceback.format_exception(error)),
        )
        failure = watchdog.report(own)
    if failure.exit_code != RunFailed.exit_code:  # to start it again would change nothing
        with suppress(RuntimeError):
            world.launch.set("final", failure.exit_code)
    raise _conclude(process, failure, world.store) from (error if failure.rank == world.rank else None)


def end_at_once(process: OneOfSeveral, failure: Failure) -> NoReturn:
    """End from the watchdog's thread if the main thread does not end; print the report here."""
    raised = _conclude(process, failure, process.watchdog.store)
    if isinstance(raised, PetraGraphError):
        sys.stderr.write(f"{raised}\n")
    hard_exit(failure.exit_code)


def _conclude(
    process: OneOfSeveral, failure: Failure, store: RunStore
) -> PetraGraphError | FailedOnAnotherProcess | Interrupted:
    """Report the failure if this process is to do so, else wait for the report; `store` is a connection that may be broken."""
    world, prepared = process.world, process.prepared
    try:
        if failure.exit_code == Interrupted.exit_code:
            if process.record is not None:
                process.record.summarise("interrupted", process.trained, weights=None)
            if world.rank == 0 and process.trainer is None:
                results = "" if process.directory is None else f"; results: {process.directory}"
                sys.stderr.write(printable(f"interrupted during the start{results}\n"))
            return Interrupted()
        if process.directory is None and prepared is not None:
            with suppress(RuntimeError, RunFailed):
                if name := store.get("directory"):
                    process.directory = run_directory(prepared.spec.run.directory, name)
        if world.rank != _reporter(process, failure):
            with suppress(RuntimeError):
                until(lambda: store.get("reported"), _REPORT_SECONDS)
            return FailedOnAnotherProcess(failure.exit_code)

        problems = [Problem(message=message, hint=hint) for message, hint in failure.problems]
        error = _ERRORS.get(failure.exit_code, RunFailed)(problems)
        if process.directory is not None and prepared is not None:
            record = process.record or RunRecord.of(process.directory, prepared)
            trained, statuses = process.trained, list[Any]()
            with suppress(RuntimeError):
                if process.record is None:
                    trained = store.get("trained") or trained
                statuses += [store.get(f"status/{rank}") for rank in range(world.size)]
            where = {**attrs.asdict(failure), "ranks": statuses}
            record.record_failure(error, trained, failure.traceback or f"{error}\n", where)
        with suppress(RuntimeError):
            store.set("reported", True)
        return error
    finally:
        process.watchdog.retire()
        world.shutdown(store, missing=int(failure.lost))

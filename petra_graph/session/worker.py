"""One process of a run on several: prepares as all do, hosts its stages, and ends as all end.

The process that hosts the head makes the run directory, records, shows and saves; the others train and stay silent. A
failure anywhere ends all of them, and one tells it: the process with the head, or where that has gone or there is no
directory yet, another.
"""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import attrs
import torch
from attrs import define

from petra_graph.compiler.placement import ranks
from petra_graph.errors import (
    FailedElsewhere,
    Interrupted,
    NoFeasiblePlan,
    PetraGraphError,
    PluginError,
    Problem,
    RunFailed,
    SpecError,
)
from petra_graph.executor.stage import StageExecutor
from petra_graph.record.listener import Listener
from petra_graph.record.metrics import Metrics
from petra_graph.runtime.bell import Bell
from petra_graph.runtime.distributed import Crew, DistributedRuntime
from petra_graph.runtime.failure import Failure
from petra_graph.runtime.gather import gathered
from petra_graph.runtime.links import Wiring, connect
from petra_graph.runtime.lookout import Failed, Lookout
from petra_graph.runtime.world import Facts, Place, World, leave
from petra_graph.session.agreement import agree
from petra_graph.session.assemble import executors
from petra_graph.session.attempt import Attempt, Summary, problems_of
from petra_graph.session.interrupt import StopRequest
from petra_graph.session.prepare import Prepared, fix_arithmetic, prepare
from petra_graph.session.train import Trainer, follow

_TOLD_SECONDS = 10.0
"""How long others wait for the one that tells of a failure."""
_LOOK_SECONDS = 0.05
_END_SECONDS = 60.0
_ERRORS = {kind.exit_code: kind for kind in (RunFailed, SpecError, NoFeasiblePlan, PluginError)}


def work(
    place: Place, path: str, overrides: Iterable[str], listener: Listener
) -> tuple[Summary | None, Interrupted | None]:
    """Do this process's part of a run.

    Returns:
        the summary, where the head is, and the interruption that ended the run, if one did.

    Raises:
        SpecError, PluginError, RunFailed: the run cannot start or go on; this process tells it.
        FailedElsewhere: another one does.
    """
    world = World(place)
    world.meet()
    bell = Bell()
    worker = _Worker(world=world, bell=bell, lookout=Lookout(world, bell))
    worker.lookout.on_stuck = worker.end_at_once
    with _requests(worker.lookout):
        try:
            interrupted = worker.run(path, overrides, listener)
        except Exception as error:  # noqa: BLE001  whatever it is, the others must know
            worker.fail(error)
    return worker.summary, interrupted


@define(kw_only=True)
class _Worker:
    """What this process knows, however it ends."""

    world: World
    bell: Bell
    lookout: Lookout
    prepared: Prepared | None = None
    ranks: Sequence[int] = ()
    """Of each stage, once they are known."""
    attempt: Attempt | None = None
    """Where the head is, once there is a directory."""
    summary: Summary | None = None

    def run(self, path: str, overrides: Iterable[str], listener: Listener) -> Interrupted | None:
        """Train; return the interruption that ended it, if one did."""
        world = self.world
        self.prepared = prepared = prepare(path, overrides, world.size)
        agree(world.facts, world.rank, prepared)
        fix_arithmetic(prepared)
        self.ranks = ranks(len(prepared.compiled.programs), world.size)
        self.lookout.stages = tuple(
            tuple(stage for stage, rank in enumerate(self.ranks, start=1) if rank == at) for at in range(world.size)
        )
        self.lookout.limit_seconds = prepared.spec.run.watchdog
        if self._leads:
            self.attempt = Attempt.new(prepared, world.size)
            world.facts.tell("directory", str(self.attempt.directory))
            self.attempt.write_what_is_known()
        hosted = self._hosted(prepared)
        runtime = self._runtime(prepared, hosted)
        mine = attrs.evolve(prepared, part=self._part())
        interrupted = None
        try:
            self._train(mine, runtime, listener)
        except Interrupted as request:
            interrupted = request
        weights = gathered(world, hosted, self.ranks[-1])
        self.lookout.check()
        if self.attempt is not None:
            self.attempt.write_weights(weights)
            self.summary = self.attempt.summarise("interrupted" if interrupted else "done")
        world.wait_for_all("run")
        self.lookout.close()
        world.wait_for_all("process", _END_SECONDS)
        return interrupted

    @property
    def _leads(self) -> bool:
        return self.ranks[-1] == self.world.rank

    def _part(self) -> Any:
        if self.ranks[0] == self.world.rank:
            return "all"
        return "targets" if self._leads else "nothing"

    def _hosted(self, prepared: Prepared) -> tuple[StageExecutor, ...]:
        programs = [
            attrs.evolve(program, device=self._device(program.device))
            for program, rank in zip(prepared.compiled.programs, self.ranks, strict=True)
            if rank == self.world.rank
        ]
        return executors(programs, prepared.compiled, prepared.spec, prepared.facts, prepared.training)

    def _device(self, name: str) -> str:
        """Return the device of this process, where the name is as if all were on one machine."""
        if not name.startswith("cuda"):
            return name
        local, available = self.world.place.local_rank, torch.cuda.device_count()
        if local >= available:
            raise SpecError(
                f"rank {self.world.rank} is process {local + 1} of its machine, which has {available} CUDA devices",
                hint='start as many processes as devices, or set partition.devices = ["cpu"]',
            )
        return f"cuda:{local}"

    def _runtime(self, prepared: Prepared, hosted: Sequence[StageExecutor]) -> DistributedRuntime:
        world, compiled, data = self.world, prepared.compiled, prepared.spec.data
        world.connect()
        wiring = Wiring(
            programs=compiled.programs,
            ranks=self.ranks,
            shapes=compiled.shapes,
            precision=prepared.spec.precision,
            batch=data.batch,
            evaluation_batch=data.evaluation_batch or data.batch,
        )
        links = connect(wiring, world, self.bell, self.lookout, prepared.spec.run.transport)
        world.wait_for_all("links")
        crew = Crew(
            rank=world.rank,
            size=world.size,
            wiring=wiring,
            links=links,
            lookout=self.lookout,
            global_clip=prepared.global_clip,
        )
        return DistributedRuntime(hosted, crew)

    def _train(self, prepared: Prepared, runtime: DistributedRuntime, listener: Listener) -> None:
        if self.attempt is None:
            follow(prepared, runtime)
            return
        with Metrics(self.attempt.directory) as metrics:
            # Where to stop is agreed upon by all processes, so nobody asks the trainer.
            self.attempt.trainer = Trainer(prepared, runtime, metrics, listener, StopRequest())
            listener.started(self.attempt.started())
            try:
                self.attempt.trainer.run()
            finally:
                listener.stopped()

    # --- failures -----------------------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> NoReturn:
        """End since something was raised here, or elsewhere.

        Raises:
            PetraGraphError: this process tells it.
            FailedElsewhere: another one does.
        """
        failure = error.failure if isinstance(error, Failed) else self.lookout.report(self._told(error))
        raised = self._conclude(failure, self.world.facts)
        raise raised from (error if failure.rank == self.world.rank else None)

    def end_at_once(self, failure: Failure) -> NoReturn:
        """End from another thread, as the main thread does not; what is to be told is told here."""
        raised = self._conclude(failure, self.lookout.facts)
        if isinstance(raised, PetraGraphError):
            sys.stderr.write("\n".join(map(str, raised.problems)) + "\n")
        leave(failure.exit_code)

    def _told(self, error: Exception) -> Failure:
        problems = problems_of(error)
        doing = self.lookout.doing
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
        )

    def _conclude(self, failure: Failure, facts: Facts) -> PetraGraphError | FailedElsewhere:
        """Write the failure down if that is this process's business, else wait until it is done.

        Args:
            failure: the first one of all.
            facts: a connection that no other thread may be waiting on; it may be broken.
        """
        directory: str | None = None
        with suppress(RuntimeError):
            directory = facts.known("directory")
        if self.world.rank != self._teller(failure, started=directory is not None):
            _wait_until_told(facts)
            return FailedElsewhere(failure.exit_code)
        problems = [Problem(message=message, hint=hint) for message, hint in failure.problems]
        error = _ERRORS.get(failure.exit_code, RunFailed)(problems)
        if directory is not None and self.prepared is not None:
            attempt = self.attempt or Attempt(
                prepared=self.prepared, directory=Path(directory), processes=self.world.size
            )
            statuses: list[Any] = []
            with suppress(RuntimeError):
                statuses += [facts.known(f"status/{rank}") for rank in range(self.world.size)]
            where = {**failure.json(), "ranks": statuses}
            attempt.record_failure(error, failure.traceback or f"{error}\n", where)
        with suppress(RuntimeError):
            facts.tell("told", True)
        return error

    def _teller(self, failure: Failure, *, started: bool) -> int:
        """Return the rank that tells of a failure: the head's once there is a directory, unless it has gone."""
        first = self.ranks[-1] if started and self.ranks else failure.rank
        if not (failure.lost and first == failure.rank):
            return first
        return next(rank for rank in range(self.world.size) if rank != failure.rank)


def _wait_until_told(facts: Facts) -> None:
    end = time.monotonic() + _TOLD_SECONDS
    with suppress(RuntimeError):
        while facts.known("told") is None and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)


@contextmanager
def _requests(lookout: Lookout) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into requests; a second SIGINT ends this process at once."""

    def ask(number: int, _: FrameType | None) -> None:
        if lookout.asked is not None and number == signal.SIGINT:
            leave(Interrupted.exit_code)
        lookout.ask(signal.Signals(number).name)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
    yield
    # From here on this process ends: its launcher may ask it to, because another one ended a moment before.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)

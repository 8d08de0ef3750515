"""Checkpoints of a run under way: every stage's state at a cut, copied as the stage passes it, and written beside the training.

    scheduler --- a stage comes to a cut, a message that was in flight --->  copies on the host
    copies ------ a thread ----------------------------------------------->  a file for each stage
    files of all processes --- the process that records ------------------>  the manifest, and the checkpoint has its name

A cut and its proof are in `program.cut`, what a stage holds in `executor.stage_state`, the files in `record.checkpoint`.

Decision: at most one checkpoint is being written. Where a stage comes to the next cut before, it waits, so that copies need no
more than the memory of one checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from queue import Queue
from threading import Condition, Thread
from typing import Any

from attrs import asdict, define, evolve, field

from petra_graph.errors import RunFailed
from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.executor.stage import StageExecutor
from petra_graph.executor.stage_state import SavedTensors
from petra_graph.program.channels import ChannelKey
from petra_graph.program.cut import Cut
from petra_graph.record import checkpoint
from petra_graph.record.checkpoint import Manifest, StageFile
from petra_graph.runtime.control.store import RunStore
from petra_graph.runtime.scheduler.context import Supervisor
from petra_graph.runtime.scheduler.cut_recorder import CutRecorder
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.spec.model import CheckpointSpec
from petra_graph.training.cut_plan import CutPlan
from petra_graph.training.loop import Trainer
from petra_graph.training.prepare import Prepared
from petra_graph.training.resolve import optimizer_of, pipeline_of

LIBRARIES = ("petra-graph", "torch", "torchvision", "numpy")
_LOOK_SECONDS = 0.05
_NEWS_SECONDS = 0.75
"""Within which every process learns of a cut: a few heartbeats."""


Write = Callable[[int, SavedTensors], StageFile]
Finish = Callable[[int, Sequence[StageFile], Mapping[str, Any] | None], None]


@define(eq=False, kw_only=True)
class Checkpoints:
    """The checkpoints of one process's stages."""

    prepared: Prepared
    directory: Path
    trainer: Trainer
    supervisor: Supervisor
    store: RunStore | None = None
    """A connection of its own, where other processes have stages, too."""
    rank: int = 0
    size: int = 1
    records: bool = True
    """This process writes the manifests."""
    folder: str
    """Of the run's first specification."""
    resumed_at: int | None = None
    plan: CutPlan = field(init=False)
    written: list[int] = field(factory=list, init=False)
    """Cuts of the checkpoints that this run has completed, in the process that records."""
    seconds: float = field(default=0.0, init=False)
    """For which the training was held up."""
    _latest: tuple[float, int] = field(default=(0.0, 0), init=False)
    """Time and forward of the latest announcement, or of the beginning."""
    _own_cut: int | None = field(default=None, init=False)
    _recorder: CutRecorder = field(init=False)
    _writer: _Writer = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.plan = evolve(CutPlan.of(self.prepared), since=self.trainer.since)
        self._latest = time.monotonic(), self.resumed_at or 0
        stages, waits = len(self.trainer.executors), not self._spec.asynchronous
        self._writer = _Writer(self._write, self._finish, stages=stages, waits=waits)
        self._recorder = CutRecorder(self.prepared.programs, self._writer.put)

    # --- called by the scheduler --------------------------------------------------------------------------------------

    def may_pass(self, micro_batch: int) -> bool:
        """Whether the first stage may do this forward: all processes know of the cut before it, if there is one.

        Where an interval in seconds is over, the cut is a few forwards ahead, so that nobody waits: as far as this process goes
        while the others learn of it.
        """
        every, now = self.plan.every, time.monotonic()
        passed = self._own_cut is None or micro_batch > self._own_cut
        if passed and every is not None and every.unit == "seconds" and now - self._latest[0] >= every.count:
            began, first = self._latest
            ahead = 0 if self.size == 1 else 1 + int((micro_batch - first) / (now - began) * _NEWS_SECONDS)
            self._latest = now, micro_batch
            self._own_cut = self.plan.allowed(micro_batch + ahead)
            self.supervisor.announce_cut(self._own_cut)
        return micro_batch != self._own_cut or micro_batch in self.supervisor.agreed_cuts

    def due(self, micro_batch: int) -> bool:
        """Whether there is a cut before this forward."""
        if micro_batch in {0, self.resumed_at}:
            return False
        return self.plan.due(micro_batch) or micro_batch in self.supervisor.announced_cuts

    def reached(self, executor: StageExecutor, cut: Cut) -> None:
        """Copy the state of a stage at a cut.

        Raises:
            RunFailed: an earlier checkpoint could not be written, or the optimizer's state cannot be.
        """
        began = time.perf_counter()
        if self._writer.admit(cut.at, executor.program.index):
            facts: dict[str, Any] = {"replica": self.prepared.batches.replica}
            if executor.program.holds_head:
                facts |= {"meters": self.trainer.meters.sums(), "position": self.trainer.position(cut.at)}
            self._recorder.reached(executor, cut, facts)
        self.seconds += time.perf_counter() - began

    def received(self, stage: int, key: ChannelKey, micro_batch: int, message: EncodedTensors) -> None:
        """Copy a message that was in flight at a cut which the stage has passed."""
        began = time.perf_counter()
        self._recorder.received(stage, key, micro_batch, message)
        self.seconds += time.perf_counter() - began

    # --- called by the run --------------------------------------------------------------------------------------------

    def save_halted(self, scheduler: Scheduler) -> None:
        """Write the checkpoint of a run that has stopped at a request; all processes do so.

        Raises:
            RunFailed: it cannot be written.
        """
        done = self.trainer.trained_epochs * len(self.prepared.batches)
        cut = scheduler.halted or Cut(micro_batches=range(done, done), at=done)
        if cut.at in {0, self.resumed_at}:
            return
        for executor in self.trainer.executors:
            self.reached(executor, cut)
        scheduler.take_in_flight(cut, self)

    def save_done(self) -> None:
        """Write the checkpoint of a run that has come to its end, from where more epochs can be trained.

        Raises:
            RunFailed: it cannot be written.
        """
        done = self.prepared.spec.run.epochs * len(self.prepared.batches)
        if (self._spec.every is None and self._spec.best is None) or done == self.resumed_at:
            return
        for executor in self.trainer.executors:
            self.reached(executor, Cut(micro_batches=range(done, done), at=done))

    def close(self) -> None:
        """Return when all is written.

        Raises:
            RunFailed: it cannot be.
        """
        self._writer.close()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _write(self, at: int, saved: SavedTensors) -> StageFile:
        return checkpoint.write_stage(
            self.directory,
            at=at,
            stage=saved.facts["index"],
            replica=saved.facts["replica"],
            tensors=saved.tensors,
            facts=saved.facts,
        )

    def _finish(self, at: int, files: Sequence[StageFile], position: Mapping[str, Any] | None) -> None:
        """Publish this process's files or, in the process that records, complete the checkpoint when all have come."""
        if not self.records:
            assert self.store is not None
            self.store.set(f"checkpoint/{at}/{self.rank}", [asdict(file) for file in files])
            return
        found = list(files)
        for rank in range(self.size):
            if rank != self.rank:
                found += self._files_of(rank, at)
        if not all(file.finite for file in found):  # the head will see it; the checkpoint before stays
            checkpoint.discard(self.directory, at)
            return
        assert position is not None
        reports = position["epochs"]
        tests = next((report["test"] for report in reversed(reports) if report["test"]), None) or {}
        manifest = Manifest(
            format=checkpoint.FORMAT,
            at=at,
            run=self.directory.name,
            versions={name: version(name) for name in LIBRARIES},
            pipeline=pipeline_of(self.prepared),
            optimizer=optimizer_of(self.prepared),
            position=position,
            metrics={f"test/{name}": value for name, value in tests.items()} if at % self.plan.per_epoch == 0 else {},
            folder=self.folder,
            files=sorted(found, key=lambda file: (file.replica, file.stage)),
        )
        checkpoint.finish(self.directory, manifest)
        self.written.append(at)
        checkpoint.keep_only(self.directory, kept(self.directory, self._spec, at))

    def _files_of(self, rank: int, at: int) -> list[StageFile]:
        """Return the files that another process has written; the watchdog knows when that process dies."""
        assert self.store is not None
        while (published := self.store.get(f"checkpoint/{at}/{rank}")) is None:
            time.sleep(_LOOK_SECONDS)
        files = [StageFile(**file) for file in published]
        for file in files:
            if checkpoint.missing_file(self.directory, at, file):
                raise RunFailed(
                    f"rank {rank} has written {file.name} of a checkpoint, and rank {self.rank} cannot see it in {self.directory}",
                    hint="set run.directory to a folder that all machines share",
                )
        return files

    @property
    def _spec(self) -> CheckpointSpec:
        return self.prepared.spec.checkpoint


def kept(directory: Path, spec: CheckpointSpec, latest: int) -> list[int]:
    """Return the cuts of the checkpoints that stay: the latest ones, and the best one.

    Later ones than the latest are of a future that the run has not taken: it went back behind them, as they were damaged.
    """
    numbers = [at for at in checkpoint.numbers(directory) if at <= latest]
    return numbers[: spec.keep] + ([] if spec.best is None else best(directory, spec)[:1])


def best(directory: Path, spec: CheckpointSpec) -> list[int]:
    """Return the cuts of the checkpoints that have the metric of `checkpoint.best`, the best first; of equals, the earliest."""
    assert spec.best is not None
    smallest = spec.best_is == "smallest" or (spec.best_is is None and spec.best == "test/loss")
    values: dict[int, float] = {}
    for at in reversed(checkpoint.numbers(directory)):
        try:
            values[at] = checkpoint.read_manifest(directory, at).metrics[spec.best]
        except (checkpoint.Damaged, KeyError):
            continue
    return sorted(values, key=lambda at: values[at] if smallest else -values[at])


class _Writer:
    """Writes the copies of one checkpoint after another, in a thread of its own."""

    def __init__(self, write: Write, finish: Finish, *, stages: int, waits: bool) -> None:
        """Begin with nothing to write.

        Args:
            write: writes a stage's file.
            finish: called with a cut's files of this process, and with the training's position where the head is here.
            stages: of this process.
            waits: whether `put` returns only when the files of a checkpoint are written.
        """
        self._write_stage, self._finish, self._stages, self._waits = write, finish, stages, waits
        self._queue: Queue[tuple[int, SavedTensors] | None] = Queue()
        self._changed = Condition()
        self._reached: dict[int, set[int]] = {}
        """Stages that have come to a cut; the latest cuts."""
        self._handed: dict[int, int] = {}
        """Stages of each checkpoint under way whose copies are complete."""
        self._files: dict[int, list[StageFile]] = {}
        self._error: BaseException | None = None
        self._thread: Thread | None = None

    def admit(self, at: int, stage: int) -> bool:
        """Wait until a stage may copy its state at a cut; return whether it has not done so before.

        Where all stages have passed an earlier cut, its checkpoint is written first; nothing behind a cut is needed for that, so
        no process can wait for ever.

        Raises:
            RunFailed: a checkpoint could not be written.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not self._complete(but=at))
            self._check()
            stages = self._reached.setdefault(at, set())
            for old in [old for old in self._reached if old < at and old not in self._handed]:
                del self._reached[old]
            if stage in stages:
                return False
            stages.add(stage)
            return True

    def put(self, at: int, saved: SavedTensors) -> None:
        """Have a stage's file written.

        Raises:
            RunFailed: a checkpoint could not be written.
        """
        with self._changed:
            self._check()
            self._handed[at] = self._handed.get(at, 0) + 1
            last = self._handed[at] == self._stages
        if self._thread is None:
            self._thread = Thread(target=self._serve, name="checkpoints", daemon=True)
            self._thread.start()
        self._queue.put((at, saved))
        if self._waits and last:
            with self._changed:
                self._changed.wait_for(lambda: self._error is not None or self._written(at))
                self._check()

    def close(self) -> None:
        """Return when all is written.

        Raises:
            RunFailed: it cannot be.
        """
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        self._check()

    def _serve(self) -> None:
        try:
            positions: dict[int, Mapping[str, Any]] = {}
            while (item := self._queue.get()) is not None:
                at, saved = item
                file = self._write_stage(at, saved)
                if "position" in saved.facts:
                    positions[at] = saved.facts["position"]
                with self._changed:
                    files = self._files.setdefault(at, [])
                    files.append(file)
                    self._changed.notify_all()
                del item, saved
                if len(files) == self._stages:
                    self._finish(at, files, positions.pop(at, None))
                    with self._changed:
                        del self._files[at], self._handed[at]
                        self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  the training's thread raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _written(self, at: int) -> bool:
        """Whether all files of a checkpoint are on the disk; it may even be complete, and forgotten."""
        return at not in self._handed or len(self._files.get(at, ())) == self._stages

    def _complete(self, but: int) -> list[int]:
        return [at for at, handed in self._handed.items() if handed == self._stages and at != but]

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

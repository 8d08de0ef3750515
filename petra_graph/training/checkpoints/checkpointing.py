"""Checkpoints of a run under way: every stage's state at a cut, copied as the stage passes it, and written while the training continues.

    scheduler --- a stage comes to a cut, a message that was in flight --->  copies on the host
    copies ------ a thread ----------------------------------------------->  a file for each stage
    files of all processes --- the process that records ------------------>  the manifest, and the checkpoint has its name

A cut and its proof are in `program.cut`, what a stage holds in `executor.stage_state`, the files in `record.write_checkpoint`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import asdict, evolve

from petra_graph.errors import RunFailed
from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.executor.stage_state import SavedTensors
from petra_graph.program.channels import ChannelKey
from petra_graph.program.cut import Cut
from petra_graph.record import write_checkpoint
from petra_graph.record.checkpoint import FORMAT, Manifest, StageFile
from petra_graph.training.checkpoints.checkpoint_writer import CheckpointWriter
from petra_graph.training.checkpoints.cut_plan import CutPlan, which_stay
from petra_graph.training.checkpoints.cut_recorder import CutRecorder
from petra_graph.training.checkpoints.resumption import Resumption
from petra_graph.training.loop.trainer import Trainer
from petra_graph.training.processes.run_process import RunProcess
from petra_graph.training.record.digests import library_versions
from petra_graph.training.record.resolved_spec import optimizer_of, pipeline_of

_LOOK_SECONDS = 0.05
_NEWS_SECONDS = 0.75
"""The time within which every process learns of a cut: a few heartbeats."""


class Checkpoints:
    """The checkpoints of one process's stages; what one of them cannot write fails the run, here or at the next cut."""

    def __init__(self, process: RunProcess, trainer: Trainer, resumption: Resumption | None = None) -> None:
        prepared = trainer.prepared
        self.process, self.trainer, self._spec = process, trainer, prepared.spec.checkpoint
        self.blind = process.blind()
        """The processes that cannot see the directory; where a process cannot, nothing is written."""
        self.plan = CutPlan.of(prepared)
        self.seconds = 0.0
        """The time for which checkpoints held up the training."""
        self._store = process.checkpoint_store()
        self._folders = (resumption or prepared.checked.loaded).folders
        self._resumed_at = None if resumption is None else resumption.skips
        self._latest = time.monotonic(), self._resumed_at or 0
        """Time and forward of the latest announcement, or of the beginning."""
        self._own_cut: int | None = None
        self._writer = CheckpointWriter(self._write, self._finish, stages=len(trainer.executors))
        self._recorder = CutRecorder(prepared.programs, self._writer.put)
        trainer.scheduler.gate.allowed_cut = self.plan.allowed
        if self.plan.has_cuts:  # otherwise no operation asks for one
            trainer.scheduler.gate.cuts = self

    # --- called by the scheduler --------------------------------------------------------------------------------------

    def may_pass(self, micro_batch: int) -> bool:
        """Whether the first stage may do this forward: all processes know of the cut before it, if there is one.

        Where an interval in seconds is over, the cut is a few forwards ahead, so that nobody waits: as many as this process does
        while the others learn of the cut.
        """
        every, now = self.plan.every, time.monotonic()
        passed = self._own_cut is None or micro_batch > self._own_cut
        if passed and every is not None and every.unit == "seconds" and now - self._latest[0] >= every.count:
            began, first = self._latest
            ahead = 0 if self.process.size == 1 else 1 + int((micro_batch - first) / (now - began) * _NEWS_SECONDS)
            self._latest = now, micro_batch
            self._own_cut = self.plan.allowed(micro_batch + ahead)
            self.process.supervisor.announce_cut(self._own_cut)
        return micro_batch != self._own_cut or micro_batch in self.process.supervisor.agreed_cuts

    def due(self, micro_batch: int) -> bool:
        self._writer.check()
        if micro_batch in {0, self._resumed_at}:
            return False
        return self.plan.due(micro_batch) or micro_batch in self.process.supervisor.announced_cuts

    def reached(self, executor: StageExecutor, cut: Cut) -> None:
        """Copy the state of a stage at a cut."""
        with self._hold_up():
            if not self._writer.admit(cut.at, executor.program.index):
                return
            facts: dict[str, Any] = {"replica": self.trainer.prepared.opened.batches.replica}
            if executor.program.holds_head:
                self.trainer.read_losses()
                facts |= {"meters": self.trainer.meters.sums(), "position": self.trainer.position_at(cut.at)}
            self._recorder.reached(executor, cut, facts)

    def received(self, stage: int, key: ChannelKey, micro_batch: int, message: EncodedTensors) -> None:
        """Copy a message that was in flight at a cut which the stage has passed."""
        if self._recorder.awaits_messages(stage):
            with self._hold_up():
                self._recorder.received(stage, key, micro_batch, message)

    @contextmanager
    def _hold_up(self) -> Iterator[None]:
        """Count the time that the training is held up; the watchdog does not count it, since a slow disk is not a failure."""
        began, status = time.monotonic(), self.process.supervisor.status
        self.process.supervisor.status = None
        yield
        now = time.monotonic()
        self.process.supervisor.status = None if status is None else evolve(status, since=now)
        self.seconds += now - began

    @property
    def notes(self) -> Sequence[str]:
        """What the user should know when the run begins."""
        if not self.blind:
            return ()
        what = f"warning: {', '.join(self.blind)} cannot see the run directory: a stopped run cannot be resumed"
        return [f"{what}; set run.directory to a folder that all machines share"]

    # --- called by the run --------------------------------------------------------------------------------------------

    def end(self, *, halted: bool) -> None:
        """Write the checkpoint of a run that has stopped at a request, or has come to its end; return when all is written."""
        done = self.trainer.position.trained_epochs * len(self.trainer.prepared.opened.batches)
        cut = Cut(micro_batches=range(done, done), at=done)
        if halted:
            cut = self.trainer.scheduler.halted or cut
            saves = cut.at not in {0, self._resumed_at} and not self.blind
        else:  # more epochs can be trained from there
            saves = (self._spec.every is not None or self._spec.best is not None) and done != self._resumed_at
        if saves:
            for executor in self.trainer.executors:
                self.reached(executor, cut)
            if halted:
                self.trainer.scheduler.take_in_flight(cut, self)
        self.close()

    def close(self) -> None:
        self._writer.close()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _write(self, at: int, saved: SavedTensors) -> StageFile:
        return write_checkpoint.write_stage(
            self.directory,
            at=at,
            stage=saved.facts["index"],
            replica=saved.facts["replica"],
            tensors=saved.tensors,
            facts=saved.facts,
        )

    def _finish(self, at: int, files: Sequence[StageFile], position: Mapping[str, Any] | None) -> None:
        """Publish this process's files or, in the process that records, complete the checkpoint when all have come."""
        if not self.process.records:
            assert self._store is not None
            self._store.set(f"checkpoint/{at}/{self.process.rank}", [asdict(file) for file in files])
            return
        found = list(files)
        for rank in range(self.process.size):
            if rank != self.process.rank:
                found += self._files_of(rank, at)
        if not all(file.finite for file in found):  # the head will see it; the checkpoint before stays
            write_checkpoint.discard(self.directory, at)
            return
        assert position is not None
        reports = position["epochs"]
        split = self.trainer.prepared.spec.data.evaluated
        values = next((report[split] for report in reversed(reports) if report[split]), None) or {}
        manifest = Manifest(
            format=FORMAT,
            at=at,
            run=self.directory.name,
            versions=library_versions(),
            pipeline=pipeline_of(self.trainer.prepared),
            optimizer=optimizer_of(self.trainer.prepared),
            position=position,
            metrics={f"{split}/{name}": value for name, value in values.items()}
            if at % self.plan.per_epoch == 0
            else {},
            folders=self._folders,
            files=sorted(found, key=lambda file: (file.replica, file.stage)),
        )
        write_checkpoint.finish(self.directory, manifest)
        stay = which_stay(self.directory, self._spec, self.trainer.prepared.checked.scales)
        write_checkpoint.keep_only(self.directory, stay)

    def _files_of(self, rank: int, at: int) -> list[StageFile]:
        """Return the files that another process has written; the watchdog knows when that process dies."""
        assert self._store is not None
        while (published := self._store.get(f"checkpoint/{at}/{rank}")) is None:
            time.sleep(_LOOK_SECONDS)
        files = [StageFile(**file) for file in published]
        for file in files:
            if write_checkpoint.missing_file(self.directory, at, file):
                raise RunFailed(
                    f"rank {rank} has written {file.name} of a checkpoint, and rank {self.process.rank} cannot see it in {self.directory}",
                    hint="set run.directory to a folder that all machines share",
                )
        return files

    @property
    def directory(self) -> Path:
        assert self.process.directory is not None
        return self.process.directory

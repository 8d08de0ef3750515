"""Checkpoints of a run under way: every stage's state at a cut, copied as the stage passes it, and written while the training continues.

    scheduler --- a stage comes to a cut, a message that was in flight --->  copies on the host
    copies ------ a thread ----------------------------------------------->  a file for each stage
    files of all processes --- the process that records ------------------>  the manifest, and the checkpoint has its name

A cut and its proof are in `program.cut`, what a stage holds in `executor.state`, the files in `record.checkpoint`. The scheme is that of
Chandy and Lamport (1985, doi:10.1145/214451.214456), with forwards counted in place of markers sent.

Decision: at most one checkpoint is being written. If a stage comes to the next cut earlier, it waits, so that copies need no
more than the memory of one checkpoint.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from threading import Thread
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve, frozen

from petra_graph.executor.encoded import EncodedTensors
from petra_graph.executor.stage import StageExecutor
from petra_graph.executor.state import SavedTensors, capture
from petra_graph.program.channels import ChannelKey
from petra_graph.program.cut import Cut, aligned
from petra_graph.program.stage_program import StageProgram
from petra_graph.record import checkpoint
from petra_graph.record.checkpoint import Manifest, StageFile, best_cut
from petra_graph.spec.model import Flush, Interval, interval
from petra_graph.training.identity import resolved_values, versions_of
from petra_graph.training.prepare import Prepared
from petra_graph.training.resume import Resumption, stages_of
from petra_graph.training.trainer import Trainer

if TYPE_CHECKING:
    from petra_graph.training.process import RunProcess


_Message = tuple[ChannelKey, int]
"""Of a channel, of a micro-batch."""


@frozen(kw_only=True)
class CutPlan:
    """A run's cuts, counted in forwards since its start: a function of the specification, so every process knows them without a message."""

    per_epoch: int
    """Micro-batches of an epoch."""
    accumulation: int
    flush: Flush
    every: Interval | None
    evaluations: int | None
    """Epochs between evaluations, where there is a cut after each evaluation; None: evaluations need no cuts."""
    probed: tuple[int, ...]
    """Positions of an epoch's probed micro-batches: at a cut, none of them is on its way."""
    depth: int
    """The depth of the first stage, which is the deepest."""

    @classmethod
    def of(cls, prepared: Prepared) -> CutPlan:
        spec, per_epoch = prepared.spec, prepared.opened.length
        return cls(
            per_epoch=per_epoch,
            accumulation=spec.method.accumulation,
            flush=prepared.programs[0].flush,
            every=None if spec.checkpoint.every is None else interval(spec.checkpoint.every),
            evaluations=None if spec.checkpoint.best is None else spec.run.evaluate_every,
            probed=() if prepared.probe is None else tuple(prepared.probe.chosen(range(per_epoch))),
            depth=max(program.depth for program in prepared.programs),
        )

    def due(self, at: int) -> bool:
        """Whether there is a cut before forward `at`."""
        return at > 0 and at in _cuts(self, (at - 1) // self.per_epoch)

    def allowed(self, at: int) -> int:
        """Return the first forward from `at` on before which there may be a cut."""
        if self.flush == "window":  # nothing is in flight there, probed or not
            return aligned(at, self.per_epoch, self.accumulation, self.flush)
        epoch, done = divmod(at, self.per_epoch)
        while any(probed < done < probed + self.depth for probed in self.probed) and done < self.per_epoch:
            done += 1
        return epoch * self.per_epoch + done


@lru_cache(maxsize=4)
def _cuts(plan: CutPlan, epoch: int) -> frozenset[int]:
    """Return the cuts after the first forward of an epoch, counted from 0, up to the first of the next one."""
    start, end, every, found = epoch * plan.per_epoch, (epoch + 1) * plan.per_epoch, plan.every, set[int]()
    of_epochs = [plan.evaluations, every.count if every is not None and every.unit == "epochs" else None]
    if any(count is not None and (epoch + 1) % count == 0 for count in of_epochs):
        found.add(end)
    if every is not None and every.unit == "updates":
        updates = -(-plan.per_epoch // plan.accumulation)
        for done in range(1, updates + 1):
            if (epoch * updates + done) % every.count == 0:
                found.add(min(plan.allowed(min(start + done * plan.accumulation, end)), end))
    return frozenset(found)


class CutRecorder:
    """Copies what stages hold at cuts, and the messages in flight there, while the pipeline keeps running.

    a stage comes to its forward N      --->  a copy of what it holds (`executor.state`)
    it receives a backward message that
    was in flight before that forward   --->  a copy of the message; with the last one, the stage's copy is complete
    """

    def __init__(self, programs: Sequence[StageProgram]) -> None:
        self._programs = programs
        self._awaited = defaultdict[_Message, list[tuple[int, SavedTensors, set[_Message]]]](list)
        """The cuts at which a message was in flight, each with the copy of the stage that has passed it, and all messages that this lacks."""

    def complete(self, at: int, saved: SavedTensors) -> None:
        """Take the copy of a stage at the cut before forward `at`, with the messages that were in flight to it."""
        raise NotImplementedError

    def facts(self, executor: StageExecutor, cut: Cut) -> Mapping[str, Any]:
        """Return what else is to be kept of a stage at a cut, as JSON."""
        return {}

    def reached(self, executor: StageExecutor, cut: Cut) -> None:
        """Copy the state of a stage that has come to a cut; raise RunFailed if its optimizer's state cannot be copied."""
        program, saved = executor.program, capture(executor)
        saved.facts |= {**self.facts(executor, cut), "messages": []}
        # No forward message crosses a cut (`program.cut`).
        lacking = {
            (channel.key, micro_batch)
            for channel in program.channels
            if channel.key.direction == "backward" and channel.receiver == program.index
            for micro_batch in cut.in_flight(self._programs[channel.sender - 1], program)
        }
        for message in lacking:
            self._awaited[message].append((cut.at, saved, lacking))
        if not lacking:
            self.complete(cut.at, saved)

    def received(self, key: ChannelKey, micro_batch: int, message: EncodedTensors) -> None:
        """Copy a message of a consumer if it was in flight at a cut, or several, that the stage has passed."""
        for at, saved, lacking in self._awaited.pop((key, micro_batch), ()):
            saved.put_all(f"messages/{len(saved.facts['messages'])}", message)
            saved.facts["messages"].append([*key.edge, micro_batch])
            lacking.remove((key, micro_batch))
            if not lacking:
                self.complete(at, saved)


class Checkpoints(CutRecorder):
    """The checkpoints of one process's stages; what one of them cannot write fails the run, here or at the next cut."""

    def __init__(self, process: RunProcess, trainer: Trainer, resumption: Resumption | None = None) -> None:
        super().__init__(trainer.prepared.programs)
        self.process, self.trainer, self.prepared = process, trainer, trainer.prepared
        self.plan = plan = CutPlan.of(self.prepared)
        self._latest: int | None = None
        """The latest cut, which need not be made again; one before an evaluation is made again behind it, as its checkpoint has the values."""
        if resumption is not None and not resumption.manifest.position["evaluates"]:
            self._latest = resumption.at
        self._copies = defaultdict[int, list[SavedTensors]](list)
        """The complete copies of this process's stages at each cut that some stages have not passed yet."""
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        """What a thread met."""
        self._saves = plan.every is not None or plan.evaluations is not None
        """Whether there are cuts in a run that is not interrupted; otherwise no operation asks for one."""
        trainer.scheduler.allowed_cut = plan.allowed
        trainer.scheduler.cuts = self if self._saves else None

    # --- called by the scheduler --------------------------------------------------------------------------------------

    def due(self, micro_batch: int) -> bool:
        """Whether there is a cut before this forward."""
        if self._error is not None:
            raise self._error
        return micro_batch != self._latest and self.plan.due(micro_batch)

    def reached(self, executor: StageExecutor, cut: Cut) -> None:
        """Copy the state of a stage at a cut; a checkpoint that all stages have passed is written first.

        Nothing after a cut is needed for that, so no process can wait for ever.
        """
        with self._unwatched():
            self._wait()
            super().reached(executor, cut)

    def facts(self, executor: StageExecutor, cut: Cut) -> Mapping[str, Any]:
        facts: dict[str, Any] = {"replica": self.prepared.opened.replica}
        if executor.program.holds_head:
            self.trainer.read_losses()
            facts |= {"meters": self.trainer.meters.sums(), "position": self.trainer.position_at(cut.at)}
        return facts

    @contextmanager
    def _unwatched(self) -> Iterator[None]:
        """Hide the operation from the watchdog: a slow disk is not a failure."""
        supervisor = self.process.supervisor
        status, supervisor.status = supervisor.status, None
        yield
        supervisor.status = None if status is None else evolve(status, since=time.monotonic())

    # --- called by the run --------------------------------------------------------------------------------------------

    def end(self, *, halted: bool) -> None:
        """Write the checkpoint of a run that has stopped at a request, or has come to its end; return when all is written."""
        position, per_epoch, saves = self.trainer.position, self.plan.per_epoch, self._saves
        # Of the epochs that have been trained, the latest may not have been evaluated.
        done = (position.epoch - 1 + position.evaluates) * per_epoch
        cut = Cut(micro_batches=range(done, done), at=done)
        if halted:
            cut = self.trainer.scheduler.halted or cut
            # A graph in flight cannot be made again from its input, so methods that differentiate old ones need a drained pipeline.
            saves = not (self.prepared.checked.method.differentiates_old_graphs and cut.at % per_epoch)
        # At its end, too: more epochs can be trained from there.
        if saves and cut.at not in {0, self._latest}:
            for executor in self.trainer.executors:
                self.reached(executor, cut)
            if halted:
                self.trainer.scheduler.take_in_flight(cut, self)
        self._wait()

    # --- a thread for each checkpoint ---------------------------------------------------------------------------------

    def complete(self, at: int, saved: SavedTensors) -> None:
        """Take the copy of a stage; the last one of this process starts the thread."""
        self._copies[at].append(saved)
        if len(self._copies[at]) == len(self.trainer.executors):
            with self._unwatched():
                self._wait()
            self._latest = at
            self._thread = Thread(target=self._write, args=(at, self._copies.pop(at)), name="checkpoint", daemon=True)
            self._thread.start()

    def _wait(self) -> None:
        """Return when all that was to be written is; raise what the thread met."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error

    def _write(self, at: int, copies: list[SavedTensors]) -> None:
        """Write this process's files and, in the process that records, complete the checkpoint when all have come."""
        directory, prepared, written, position = self.process.directory, self.prepared, [], None
        assert directory is not None
        try:
            while copies:
                saved = copies.pop()  # its memory is free once it is written
                position = saved.facts.get("position", position)
                written.append(asdict(checkpoint.write_stage(directory, at, saved.tensors, saved.facts)))
            # The process that records waits here for the slowest disk; the training does not.
            of_all = self.process.collect(f"checkpoint/{at}", written, in_thread=True)
            if not prepared.records:
                return
            files = [StageFile(**file) for of_process in of_all for file in of_process]
            if not all(file.finite for file in files):  # the head will see it; the checkpoint before stays
                checkpoint.discard(directory, at)
                return
            assert position is not None
            split, spec = prepared.spec.data.evaluated, prepared.spec.checkpoint
            values = next((report[split] for report in reversed(position["epochs"]) if report[split]), None) or {}
            manifest = Manifest(
                at=at,
                versions=versions_of(),
                values=resolved_values(prepared),
                stages=stages_of(prepared),
                position=position,
                # Within an epoch the latest evaluation is of other weights.
                metrics={f"{split}/{name}": one for name, one in values.items() if at % self.plan.per_epoch == 0},
                folders=prepared.folders,
                files=sorted(files, key=lambda file: (file.replica, file.stage)),
            )
            checkpoint.finish(directory, manifest)
            best = best_cut(directory, spec, prepared.checked.scales)
            checkpoint.keep_only(directory, [*checkpoint.numbers(directory)[: spec.keep], best])
        except BaseException as error:  # noqa: BLE001  the training's thread raises it
            self._error = error

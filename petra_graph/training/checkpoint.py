"""Checkpoints of a run under way, and a run that continues from one.

    scheduler --- a stage comes to a cut, a message that was in flight --->  copies on the host
    copies ------ a thread ----------------------------------------------->  a file for each stage
    files of all processes --- the process that records ------------------>  the manifest, and the checkpoint has its name

A cut and its proof are in `program.cut`, what a stage holds in `executor.state`, the files in `record.checkpoint`. The scheme is that of
Chandy and Lamport (1985, doi:10.1145/214451.214456), with forwards counted in place of markers sent. At most one checkpoint is being
written: a stage that comes to the next cut earlier waits, so that copies need no more than the memory of one.

Where the method, the precision and the stages are those of the checkpoint, a run continues to the bit, on whatever number of
processes. Under other stages every node gets its own parameters, buffers and optimizer state back, and the pipeline fills
again: the micro-batches that were in flight or waited for an update are discarded, which a message says.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch
from attrs import define, evolve, field, frozen

from petra_graph.errors import Problem, SpecError
from petra_graph.executor.encoded import EncodedTensors
from petra_graph.executor.stage import StageExecutor
from petra_graph.executor.state import Facts, SavedTensors, capture, restore, restore_groups, restore_nodes
from petra_graph.program.channels import ChannelKey, Edge
from petra_graph.program.cut import Cut, aligned
from petra_graph.program.stage_program import StageProgram
from petra_graph.record import checkpoint
from petra_graph.record.checkpoint import Damaged, Manifest, best_cut, read_stage, stage_file
from petra_graph.record.run_directory import METRICS, SUMMARY, read_json
from petra_graph.runtime.loop import Scheduler
from petra_graph.spec.model import Flush, Interval, interval
from petra_graph.training.evaluation import Meters
from petra_graph.training.identity import Fingerprint, list_changes, values_of
from petra_graph.training.prepare import Prepared
from petra_graph.training.trainer import Trainer, TrainingPosition
from petra_graph.units import bounded

if TYPE_CHECKING:
    from petra_graph.training.process import RunProcess

_Message = tuple[ChannelKey, int]  # of a channel, of a micro-batch


@frozen(kw_only=True)
class CutPlan:
    """A run's cuts, counted in forwards since its start: a function of the specification, so every process knows them without a message."""

    per_epoch: int
    accumulation: int
    flush: Flush
    every: Interval | None
    evaluations: int | None  # epochs between them, where there is a cut after each
    probed: tuple[int, ...]  # positions in an epoch; at a cut, none of these micro-batches is on its way
    depth: int  # of the first stage, which is the deepest

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
    """Copies what stages hold at cuts, and the messages in flight there, while the pipeline keeps running."""

    def __init__(self, programs: Sequence[StageProgram]) -> None:
        self._programs = programs
        self._awaited = defaultdict[_Message, list[tuple[int, SavedTensors, set[_Message]]]](list)
        """The cuts at which a message was in flight, each with the copy of the stage that has passed it, and all messages that this lacks."""

    def complete(self, at: int, saved: SavedTensors) -> None:
        """Take the copy of a stage at the cut before forward `at`, with the messages that were in flight to it."""

    def reached(self, executor: StageExecutor, cut: Cut, **facts: Any) -> None:
        """Copy the state of a stage that has come to a cut, with more facts; raise RunFailed if its optimizer's state cannot be copied."""
        program, saved = executor.program, capture(executor)
        saved.facts |= {**facts, "messages": []}
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
        # The latest cut need not be made again; one before an evaluation is made again behind it, as its checkpoint has the values.
        self._latest: int | None = None
        if resumption is not None and not resumption.manifest.position["evaluates"]:
            self._latest = resumption.manifest.at
        # The complete copies of this process's stages at each cut that some stages have not passed yet.
        self._copies = defaultdict[int, list[SavedTensors]](list)
        self._thread: Thread | None = None
        self._error: BaseException | None = None  # that a thread met
        # Without cuts in a run that is not interrupted, no operation asks for one.
        self._saves = plan.every is not None or plan.evaluations is not None
        trainer.scheduler.allowed_cut = plan.allowed
        trainer.scheduler.cuts = self if self._saves else None

    def due(self, micro_batch: int) -> bool:
        """Whether there is a cut before this forward."""
        if self._error is not None:
            raise self._error
        return micro_batch != self._latest and self.plan.due(micro_batch)

    def reached(self, executor: StageExecutor, cut: Cut, **facts: Any) -> None:
        """Copy the state of a stage at a cut, with that of the training where the head is."""
        with self._unwatched():
            self._wait()  # no process can wait for ever: nothing after a cut is needed to write it
            if executor.program.holds_head:
                self.trainer.read_losses()
                facts |= {"meters": self.trainer.meters.sums(), "position": self.trainer.position_at(cut.at)}
            super().reached(executor, cut, replica=self.prepared.opened.replica, **facts)

    @contextmanager
    def _unwatched(self) -> Iterator[None]:
        """Hide the operation from the watchdog: a slow disk is not a failure."""
        supervisor = self.process.supervisor
        status, supervisor.status = supervisor.status, None
        yield
        supervisor.status = None if status is None else evolve(status, since=time.monotonic())

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
                written.append(checkpoint.write_stage(directory, at, saved.tensors, saved.facts))
            # The process that records waits here for the slowest disk; the training does not.
            of_all = self.process.collect(f"checkpoint/{at}", written, in_thread=True)
            if not prepared.records:
                return
            assert position is not None
            split, spec = prepared.spec.data.evaluated, prepared.spec.checkpoint
            values = next((report[split] for report in reversed(position["epochs"]) if report[split]), None) or {}
            manifest = Manifest(
                at=at,
                values=values_of(prepared),
                fixed=_fixed(prepared),
                stages=[program.nodes for program in prepared.programs],
                position=position,
                # Within an epoch the latest evaluation is of other weights.
                metrics={f"{split}/{name}": one for name, one in values.items() if at % self.plan.per_epoch == 0},
                files={name: digest for of_process in of_all for name, digest in of_process},
            )
            checkpoint.finish(directory, manifest)
            best = best_cut(directory, spec, prepared.checked.scales)
            checkpoint.keep_only(directory, [*checkpoint.numbers(directory)[: spec.keep], best])
        except BaseException as error:  # noqa: BLE001  the training's thread raises it
            self._error = error


# --- a run that continues -----------------------------------------------------------------------------------------------

_KEPT = ("data.batch", "data.validation", "optimizer.name", "partition.replicas")
_KIND = re.compile(r"graph\.node\.\d+\.kind:")  # it decides what a node keeps of the micro-batches in flight
# The beginnings of keys that decide what stages hold at a cut.
_PIPELINE = ("method.", "partition.stages", "precision.")


def _fixed(prepared: Prepared) -> dict[str, str]:
    """Return what a resumed run must have as before, by name."""
    values, shapes = values_of(prepared), prepared.network.shapes
    # Other validation samples have been trained on, or are no longer; a share is drawn by the seed.
    keys = (*_KEPT, *["run.seed"] * isinstance(prepared.spec.data.validation, float))
    found = {f"parameters of {node}": f"{shape.parameters}" for node, shape in shapes.items()}
    found |= {key: values.get(key, "unset") for key in keys}
    return found | {"micro-batches of an epoch": f"{prepared.opened.length}"}


@define(kw_only=True)
class Resumption:
    """A checkpoint from which a run is resumed."""

    directory: Path
    manifest: Manifest
    notes: list[str] = field(factory=list)
    exact: bool = True  # whether the stages of the run can hold what those of the checkpoint held

    @classmethod
    def find(cls, directory: Path) -> Resumption:
        """Return the latest checkpoint that is whole."""
        refused, events = list[str](), directory / METRICS
        recorded = events.stat().st_size if events.exists() else 0
        for number in checkpoint.numbers(directory):
            try:
                manifest = checkpoint.read_manifest(directory, number, verified=True)
            except Damaged as error:
                refused.append(error.problems[0].message)
                continue
            if recorded >= manifest.position["metrics_bytes"]:
                return cls(directory=directory, manifest=manifest, notes=refused)
            folder = checkpoint.folder_of(directory, number)
            refused.append(f"{folder} is not used: {METRICS} has lost events that it had at the checkpoint")
        raise SpecError([Problem(message=text) for text in refused or [f"{directory} has no checkpoint"]])

    def accept(self, prepared: Prepared) -> Mapping[str, Any] | None:
        """Compare a run with the checkpoint, and note what is other; return its summary, if it is done and nothing is left to train."""
        at, epochs, summary = self.manifest.at, prepared.spec.run.epochs, read_json(self.directory / SUMMARY)
        is_of = f"the checkpoint before forward {at} is of"
        values = list_changes(self.manifest.values, values_of(prepared))
        others = list_changes(self.manifest.fixed, _fixed(prepared)) or [one for one in values if _KIND.match(one)]
        if others:
            hint = "resume with the specification and the data of the run, or remove the later checkpoints"
            raise SpecError(f"{is_of} another run: {others[0]}", hint)
        if (reached := -(-at // prepared.opened.length)) > epochs:
            hint = "set run.epochs to that or more, or resume an earlier checkpoint: remove the later ones"
            raise SpecError(f"{is_of} epoch {reached}, and run.epochs is {epochs}", hint)
        done = summary.get("status") == "done" and summary["micro_batches"] == at
        early = "" if any(text.startswith("callback") for text in values) else summary.get("stopped_early")
        if done and (early or self.manifest.position["epoch"] > epochs):
            return summary  # nothing is written: other values would falsify the record of weights that were trained without them

        self.notes += [f"changed: {bounded(text, 160)}" for text in values]
        if (before := Fingerprint.read(self.directory)) is not None:
            changes = before.changes(*prepared.fingerprint.found)
            self.notes += [f"warning: changed since the training before: {text}" for text in changes]
        self.exact = not any(text.startswith(_PIPELINE) for text in values)
        if not self.exact:
            discards = "the run discards micro-batches in flight or waiting for an update and fills the pipeline again"
            self.notes.append(f"other stages, method or precision than at the checkpoint: {discards}")
        return None

    def restore(self, prepared: Prepared, scheduler: Scheduler) -> tuple[TrainingPosition, Meters]:
        """Restore the stages and channels of this process; return where the training continues, and the meters of its epoch."""
        replica, so_far = prepared.opened.replica, Meters()
        for executor in scheduler.executors:
            if self.exact:
                saved = self._saved(executor.program.index, replica)
                restore_at_cut(saved, executor, scheduler)
            else:
                saved = self._restore_by_node(executor, replica)
            if "meters" in saved.facts:
                so_far.merge(saved.facts["meters"])
        position = TrainingPosition(**self.manifest.position)
        if not self.exact:
            position.since = self.manifest.at
        position.resumed_from = (*position.resumed_from, self.manifest.at)
        return position, so_far

    def _saved(self, stage: int, replica: int) -> SavedTensors:
        return SavedTensors(*read_stage(self.directory, self.manifest.at, stage_file(stage, replica)))

    def _restore_by_node(self, executor: StageExecutor, replica: int) -> SavedTensors:
        """Restore nodes, whichever stage they were in; a stage takes the counts of the saved stage with the most updates."""
        stage_of = {node: index for index, stage in enumerate(self.manifest.stages, 1) for node in stage}
        merged, groups, updates = SavedTensors(facts={"optimizer": {}, "strides": {}, "encoded": {}}), list[Facts](), 0
        # A node's facts are by its name, so those of several stages lie beside one another.
        for index in sorted({stage_of[node] for node in executor.program.nodes}):
            saved = self._saved(index, replica)
            merged.tensors |= saved.tensors
            for fact in ("optimizer", "strides"):
                merged.facts[fact] |= saved.facts.get(fact, {})
            if saved.facts["updates"] >= updates:
                updates, groups = saved.facts["updates"], saved.facts.get("groups", groups)
            if executor.program.holds_head and "meters" in saved.facts:
                merged.facts["meters"] = saved.facts["meters"]
        restore_nodes(executor, merged)
        restore_groups(executor.updater, groups)
        executor.updater.updates = updates
        return merged


def restore_at_cut(saved: SavedTensors, executor: StageExecutor, scheduler: Scheduler) -> None:
    """Put a stage back to what it held at a cut, and queue the messages in flight there to be received first."""
    restore(executor, saved)
    host, messages = torch.device("cpu"), saved.facts["messages"]
    for index in sorted(range(len(messages)), key=lambda index: int(messages[index][2])):
        producer, consumer, *_ = messages[index]
        key = ChannelKey(Edge(producer, consumer), "backward")
        scheduler.channels.put_back(key, saved.get_all(f"messages/{index}", host))

"""A run that is resumed from its latest checkpoint that is whole.

Where the method, the precision and the stages are those of the checkpoint, it continues to the bit, on whatever number of
processes. Under other stages every node gets its own parameters, buffers and optimizer state back, and the pipeline fills
again: the micro-batches that were in flight or waited for an update are discarded, and counted in a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import define, field

from petra_graph.errors import Problem, SpecError
from petra_graph.executor.stage import StageExecutor
from petra_graph.executor.state import Facts, SavedTensors, restore, restore_groups, restore_nodes
from petra_graph.program.channels import ChannelKey, Edge
from petra_graph.record import checkpoint
from petra_graph.record.checkpoint import Damaged, Manifest, StageFile, read_stage
from petra_graph.record.run_directory import METRICS, SUMMARY, read_json
from petra_graph.record.weights import WEIGHTS
from petra_graph.runtime.loop import Scheduler
from petra_graph.training.evaluation import Meters
from petra_graph.training.identity import Fingerprint, list_changes, resolved_values, versions_of
from petra_graph.training.prepare import Prepared
from petra_graph.training.trainer import TrainingPosition
from petra_graph.units import bounded

_LISTED, _WIDTH = 5, 160
_FIXED = ("data.batch", "data.validation", "optimizer.name", "partition.replicas")
"""What a resumed run keeps."""
_PIPELINE = ("method.", "precision.")
"""The beginnings of keys that decide what stages hold at a cut."""
_COMPUTES = ("graph", "precision", "loss", "data")
"""Tables of values that decide what a run computes: where they are others, so is its fingerprint."""
_UNFIT = (Damaged, LookupError, TypeError, ValueError, AttributeError, AssertionError, RuntimeError, OverflowError)
"""The errors from facts and tensors that do not fit the stages here, although their digests are right."""


def stages_of(prepared: Prepared) -> list[dict[str, Any]]:
    """Return the nodes of each stage, with the number of their parameters, and its depth, as JSON."""
    shapes = prepared.network.shapes
    return [
        {"nodes": {node: shapes[node].parameters for node in program.nodes}, "depth": program.depth}
        for program in prepared.programs
    ]


@define(kw_only=True)
class Resumption:
    """A checkpoint from which a run is resumed."""

    directory: Path
    """The directory of the run."""
    manifest: Manifest
    notes: list[str] = field(factory=list)
    """Notes that the user should read."""
    changed: list[str] = field(factory=list)
    """What the run's summary says from then on, each as in "before forward 1500: run.epochs: 3 then, 4 now"."""
    exact: bool = True
    """Whether the stages of the run, once it is accepted, can hold what those of the checkpoint held."""

    @classmethod
    def find(cls, directory: Path, at: int | None = None) -> Resumption:
        """Return the latest checkpoint that is whole, or the one before forward `at`, which another process has verified."""
        refused: list[str] = []
        for number in checkpoint.numbers(directory) if at is None else [at]:
            try:
                manifest = checkpoint.read_manifest(directory, number)
                if at is None:
                    checkpoint.verify(directory, manifest)
                size, needed = (directory / METRICS).stat().st_size, manifest.position["metrics_bytes"]
                if at is not None or size >= needed:
                    return cls(directory=directory, manifest=manifest, notes=refused)
                damage = f"{METRICS} has {size} bytes, and {needed} were there at the checkpoint"
            except Damaged as error:
                damage = str(error)
            refused.append(f"{checkpoint.folder_of(directory, number)} is not used: {damage}")
        hint = "start the run again, or resume another one"
        raise SpecError([Problem(message=text, hint=hint) for text in refused or [f"{directory} has no checkpoint"]])

    @property
    def at(self) -> int:
        """The first forward after the cut."""
        return self.manifest.at

    def accept(self, prepared: Prepared) -> Mapping[str, Any] | None:
        """Compare a run with the checkpoint, and note what is other; return its summary, if nothing is left to train.

        Decision: where nothing is left to train, nothing is written: other values would only falsify the record of weights that were
        trained without them.

        Raises:
            SpecError: it is another run: of another network, of other validation samples, or of other values that a resumed run keeps.
        """
        then, now = self.manifest.values, resolved_values(prepared)
        stages, position = stages_of(prepared), TrainingPosition(**self.manifest.position)
        length, epochs = position.micro_batches_per_epoch, prepared.spec.run.epochs
        # Other validation samples have been trained on, or are no longer; a share is drawn by the seed.
        keys = (*_FIXED, *["run.seed"] * isinstance(prepared.spec.data.validation, float))

        def kept(of_stages: Any, values: Mapping[str, str], length: int) -> dict[str, str]:
            parameters = {node: count for one in of_stages for node, count in one["nodes"].items()}
            return (
                {f"parameters of {node}": f"{count}" for node, count in parameters.items()}
                | {key: values[key] for key in keys if key in values}
                | {"micro-batches of an epoch": f"{length}"}
            )

        message = f"the checkpoint before forward {self.at} is of "
        others = list_changes(kept(self.manifest.stages, then, length), kept(stages, now, prepared.opened.length))
        if others:
            hint = "resume with the specification and the data of the run, or remove the later checkpoints"
            raise SpecError([Problem(message=f"{message}another run: {one}", hint=hint) for one in others[:_LISTED]])
        if (reached := -(-position.micro_batches // length)) > epochs:
            hint = "set run.epochs to that or more, or resume an earlier checkpoint: remove the later ones"
            raise SpecError(f"{message}epoch {reached}, and run.epochs is {epochs}", hint)

        values, versions = list_changes(then, now), list_changes(self.manifest.versions, versions_of())
        before, computed = Fingerprint.read(self.directory), list[str]()
        # Where the specification says that something else is computed, the fingerprint would only repeat it.
        if before is not None and not any(text.startswith(_COMPUTES) for text in values):
            computed = before.changes(prepared.fingerprint.values)
        if versions:
            told = f"the checkpoint is of other versions, so the last bits may differ: {'; '.join(versions)}"
            self.notes.append(told)
        self.notes += [f"changed: {bounded(text, _WIDTH)}" for text in values]
        self.notes += [f"warning: changed since the training before: {text}" for text in computed]
        self.changed = [f"before forward {self.at}: {text}" for text in (*values, *computed, *versions)]
        # On a CPU no operation reads whether products are in TF32.
        passed_over = () if prepared.on_cuda else ("precision.fp32_precision",)
        of_pipeline = [text for text in values if text.startswith(_PIPELINE) and not text.startswith(passed_over)]
        self.exact = stages == self.manifest.stages and not of_pipeline

        summary = read_json(self.directory / SUMMARY)
        early = "" if any(text.startswith("callback") for text in values) else summary.get("stopped_early")
        if position.epoch > epochs and not position.evaluates:
            why = f"run.epochs is {epochs}; set it higher to continue"
        elif early and summary["micro_batches"] == self.at:
            why = f"the run stopped early, {early}; change its callbacks to continue"
        else:
            if not self.exact:
                self.notes.append(
                    "other stages, method or precision than at the checkpoint: the run discards micro-batches in flight or waiting for an "
                    "update and fills the pipeline again; with those of the checkpoint it would continue bit for bit"
                )
            return None
        self.notes.append(f"nothing is left to train: {why}")
        return summary if summary.get("status") == "done" and (self.directory / WEIGHTS).is_file() else None

    def restore(self, prepared: Prepared, scheduler: Scheduler) -> tuple[TrainingPosition, Meters]:
        """Restore the stages and channels of this process; return where the training continues, and the meters of its epoch."""
        files = {file.stage: file for file in self.manifest.files if file.replica == prepared.opened.replica}
        so_far = Meters()
        try:
            for executor in scheduler.executors:
                if self.exact:
                    saved = SavedTensors(*read_stage(self.directory, self.at, files[executor.program.index]))
                    restore_at_cut(saved, executor, scheduler)
                else:
                    saved = self._restore_by_node(executor, files)
                if "meters" in saved.facts:
                    so_far.merge(saved.facts["meters"])
            position = TrainingPosition(**self.manifest.position)
        except _UNFIT as error:
            message = f"the checkpoint before forward {self.at} cannot be used: {type(error).__name__}: {error}"
            raise SpecError(message, "resume an earlier one: remove the later checkpoints") from error
        if not self.exact:
            position.since = self.at
        position.resumed_from = (*position.resumed_from, self.at)
        position.changed = (*position.changed, *self.changed)
        return position, so_far

    def _restore_by_node(self, executor: StageExecutor, files: Mapping[int, StageFile]) -> SavedTensors:
        """Restore nodes, whichever stage they were in; a stage takes the counts of the saved stage with the most updates."""
        stage_of = {node: index for index, stage in enumerate(self.manifest.stages, 1) for node in stage["nodes"]}
        merged, groups, updates = SavedTensors(facts={"optimizer": {}, "strides": {}, "encoded": {}}), list[Facts](), 0
        # A node's facts are by its name, so those of several stages lie beside one another.
        for index in sorted({stage_of[node] for node in executor.program.nodes}):
            saved = SavedTensors(*read_stage(self.directory, self.at, files[index]))
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
        scheduler.channels.put_back(
            ChannelKey(Edge(producer, consumer), "backward"), saved.get_all(f"messages/{index}", host)
        )

"""The specification as frozen values.

Each class is a table of the TOML file and each field a key; other keys are refused. `options` tables belong to plugins:
here they are plain mappings, and each plugin's own `Options` class checks them (see `registry`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import frozen

from petra_graph.spec.keys import (
    FILE_NAME,
    MOST_NODES,
    AtLeast,
    Each,
    GreaterThan,
    Length,
    LessThan,
    key,
    required,
    rule,
    table,
)
from petra_graph.spec.run_tables import CheckpointSpec, InitSpec, PartitionSpec, RunSpec

Kind = Literal["reversible", "buffered", "head"]
ScheduleName = Literal["lockstep", "1f1b", "sequential", "fill-drain"]
Schedule = ScheduleName | tuple[int, ...]
"""A schedule's name, or each stage's depth."""
RequestedScheduleName = Literal["lockstep", "1f1b", "sequential", "fill-drain", "auto"]
RequestedSchedule = RequestedScheduleName | tuple[int, ...]
"""A schedule in a specification; the placement, which has the stages' times, replaces "auto" by a list of depths."""
Keeps = Literal["nothing", "input", "graph"]
BufferedKeeps = Literal["input", "graph"]
KeepsByNode = Mapping[str, Keeps]
"""By name, for nodes that keep something else than their method has them keep."""
Uses = Literal["current", "stored"]
Flush = Literal["drain", "window"]
Dtype = Literal["uint8", "int64", "float32", "float64"]
StoredDtype = Literal["as-streams", "bfloat16", "int8"]
"""The type of floating-point tensors in a buffer or channel, where it is smaller than their own."""
Products = Literal["float64", "ieee", "tf32", "bfloat16"]
"""The arithmetic of convolutions and matrix products on a GPU."""


@frozen(kw_only=True)
class PluginSpec:
    """A plugin chosen by name, with its own options."""

    name: str = required('the plugin\'s name, or "module:attribute"')
    options: Mapping[str, Any] = table(dict, "the plugin's own options")


@frozen(kw_only=True)
class InputSpec:
    """Shape and type of a sample that enters the graph."""

    shape: tuple[int, ...] = required("shape of one sample, without the batch dimension", Length(at_least=1))
    dtype: Dtype = key("uint8", "element type of the data set's samples")


@frozen(kw_only=True)
class NodeSpec:
    """One node of the graph, or `repeat` of them in a row."""

    name: str = required("unique name; `repeat` makes NAME.0, NAME.1, ...", FILE_NAME)
    block: str = required('block plugin, or "module:attribute"')
    kind: Kind | None = key(None, "what the node keeps for its backward; default: the block's own kind")
    inputs: tuple[str, ...] | None = key(None, "nodes to read, in order; default: the node before this one")
    repeat: int = key(1, "number of copies in a row", AtLeast(1), MOST_NODES)
    options: Mapping[str, Any] = table(dict, "the block's own options")


@frozen(kw_only=True)
class GraphSpec:
    """The network, node by node."""

    input: InputSpec | None = key(None, "one sample; default: the data set's")
    node: tuple[NodeSpec, ...] = required("the nodes, in order", Length(at_least=1))


@frozen(kw_only=True)
class MethodSpec:
    """The computation of gradients."""

    name: str = key("petra", "training method")
    schedule: RequestedSchedule | None = key(
        None,
        "order of forwards and backwards, each stage's depth as a list, or the least depths at full speed "
        '("auto"); default: "1f1b", or the only one of a method without delay',
        Length(at_least=1),
        Each(AtLeast(1)),
    )
    accumulation: int = key(1, "micro-batches averaged into one update (the paper's k)", AtLeast(1))
    keep: Literal["auto"] | KeepsByNode | None = key(
        None,
        'what single nodes keep for their backward, by name; "auto": for every node what is fastest within the memory limits',
    )
    allow_stored: bool = key(
        False, "`keep` may have nodes of delayed stages keep their graphs, together with the parameters of the forward"
    )


@frozen(kw_only=True)
class ClipSpec:
    """Gradient clipping."""

    by: Literal["norm", "value"] = key("norm", "clip the gradient's norm, or each of its values")
    limit: float = required("largest norm or absolute value", GreaterThan(0))
    scope: Literal["stage", "global"] = key("stage", "one norm a stage, or one over all (synchronous methods only)")


@frozen(kw_only=True)
class OptimizerSpec(PluginSpec):
    """The optimizer; every stage has its own instance."""

    name: str = key("sgd", 'optimizer plugin, or "module:attribute"')
    clip: ClipSpec | None = key(None, "gradient clipping")


@frozen(kw_only=True)
class LrScheduleSpec(PluginSpec):
    """The learning rate as a function of a stage's own update count."""

    name: str = key("constant", 'learning-rate schedule plugin, or "module:attribute"')
    warmup_epochs: float = key(0.0, "linear warm-up, counted in updates (epochs)", AtLeast(0))
    delay_epochs: float = key(
        0.0,
        "how long the learning rate of a stage whose gradients are D > 1 updates late takes to rise from 1 / D of it (PipeMare's T1) (epochs)",
        AtLeast(0),
    )
    scaling: Literal["none", "goyal"] = key(
        "none", '"goyal" multiplies the learning rate by batch * accumulation * replicas / 256, once'
    )


@frozen(kw_only=True)
class LossSpec(PluginSpec):
    """The function that the head minimises."""

    name: str = key("cross-entropy", 'loss plugin, or "module:attribute"')


@frozen(kw_only=True)
class PrecisionSpec:
    """Number formats, in arithmetic, memory and between stages."""

    compute: Literal["float32", "float64", "bfloat16"] = key(
        "float32", "bfloat16 is autocast inside blocks, with float32 parameters and streams"
    )
    fp32_precision: Literal["tf32", "ieee"] = key(
        "tf32",
        'of convolutions and matrix products in float32 on a GPU: "tf32" rounds factors to 10 bits, and is several times as fast',
    )
    memory_format: Literal["channels-last", "contiguous"] = key("channels-last", "layout of 4-d tensors")
    buffer_dtype: StoredDtype = key(
        "as-streams", "type of the inputs stored until their backward; int8: one scale a tensor"
    )
    channel_dtype: StoredDtype = key(
        "as-streams", "type of the tensors between stages in training; int8: one scale a tensor"
    )

    @property
    def products(self) -> Products:
        """The arithmetic of convolutions and matrix products on a GPU."""
        return self.fp32_precision if self.compute == "float32" else self.compute


@frozen(kw_only=True)
class DataSpec(PluginSpec):
    """The data set and its batches."""

    name: str = required('data set plugin, or "module:attribute"')
    batch: int = key(64, "samples in a micro-batch, of one replica", AtLeast(1))
    evaluation_batch: int | None = key(None, "samples of an evaluation batch; default: batch", AtLeast(1))
    validation: float | str | None = key(
        None,
        "samples that evaluations after epochs read: a share of the training samples, drawn from the run's seed, or the name of a split; "
        "default: the test data",
        GreaterThan(0),
        LessThan(1),
        Length(at_least=1),
        rule(
            "",
            lambda value: (
                "must be a split of its own, or a share of the training samples" if value in {"train", "test"} else ""
            ),
        ),
    )
    workers: int = key(0, "loader processes; the samples do not depend on their number", AtLeast(0))

    @property
    def test_batch(self) -> int:
        return self.evaluation_batch or self.batch

    @property
    def evaluated(self) -> Literal["validation", "test"]:
        """The split that evaluations after epochs read."""
        return "test" if self.validation is None else "validation"


@frozen(kw_only=True)
class MetricSpec(PluginSpec):
    """A metric of the evaluations, with its own options."""

    recorded_as: str | None = key(
        None,
        'name of its values in the record: "f1-micro" makes test/f1-micro; default: the plugin\'s name',
        FILE_NAME,
        rule("", lambda value: 'must be another name than "loss", which every run records' if value == "loss" else ""),
    )


@frozen(kw_only=True)
class Spec:
    """A whole specification: exactly one of `graph` and `architecture`, and everything else with defaults."""

    name: str = key("run", "names the run directory; default: the file's name", FILE_NAME)
    graph: GraphSpec | None = key(None, "the network, node by node")
    architecture: PluginSpec | None = key(None, "the network by name, instead of `graph`")
    loss: LossSpec = table(LossSpec)
    method: MethodSpec = table(MethodSpec)
    partition: PartitionSpec = table(PartitionSpec)
    optimizer: OptimizerSpec = table(OptimizerSpec)
    lr_schedule: LrScheduleSpec = table(LrScheduleSpec)
    precision: PrecisionSpec = table(PrecisionSpec)
    data: DataSpec = required("the data set and its batches")
    run: RunSpec = table(RunSpec)
    init: InitSpec = table(InitSpec)
    checkpoint: CheckpointSpec = table(CheckpointSpec)
    callback: tuple[PluginSpec, ...] | None = key(
        None, "what observes the run, keeps its values or, if it says so, changes it; called in the order of the list"
    )
    metric: tuple[MetricSpec, ...] | None = key(
        None, "what is computed from all outputs and targets of an evaluation, in addition to the loss's metrics"
    )

    def replace(self, changes: Mapping[str, Any]) -> Spec:
        """Return the specification with some values changed, as `--set` changes them.

        Args:
            changes: values by key, as in {"run.epochs": 3, "graph.node.stem.options.channels": 8}.

        Raises:
            SpecError: keys or values are wrong; all problems.
        """
        from petra_graph.errors import SpecError
        from petra_graph.spec.in_code import assignments
        from petra_graph.spec.load_spec import load  # which imports this module

        loaded = load(self, assignments(changes))
        if loaded.spec is None:
            raise SpecError(loaded.problems)
        return loaded.spec

"""The specification as frozen values.

Each class is a table of the TOML file and each field a key; other keys are refused. `options` tables belong to plugins:
here they are plain mappings, which the signature of each plugin checks (`plugins.contract`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from attrs import field, frozen

from petra_graph.spec.run_tables import CheckpointSpec, InitSpec, PartitionSpec, RunSpec
from petra_graph.spec.strict_values import NODES, AtLeast, AtMost, Each, GreaterThan, Length, LessThan, is_file_name

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

    name: Annotated[str, 'the plugin\'s name, or "module:attribute"']
    options: Annotated[Mapping[str, Any], "the plugin's own options"] = field(factory=dict)


@frozen(kw_only=True)
class NodeSpec:
    """One node of the graph, or `repeat` of them in a row."""

    name: Annotated[str, "unique name; `repeat` makes NAME.0, NAME.1, ...", is_file_name]
    block: Annotated[str, 'block plugin, or "module:attribute"']
    kind: Annotated[Kind | None, "what the node keeps for its backward; default: the block's own kind"] = None
    inputs: Annotated[tuple[str, ...] | None, "nodes to read, in order; default: the node before this one"] = None
    repeat: Annotated[int, "number of copies in a row", AtLeast(1), AtMost(NODES)] = 1
    options: Annotated[Mapping[str, Any], "the block's own options"] = field(factory=dict)


@frozen(kw_only=True)
class GraphSpec:
    """The network, node by node."""

    node: Annotated[tuple[NodeSpec, ...], "the nodes, in order", Length(at_least=1)]


@frozen(kw_only=True)
class MethodSpec:
    """The computation of gradients."""

    name: Annotated[str, "training method"] = "petra"
    schedule: Annotated[
        RequestedSchedule | None,
        'order of forwards and backwards, each stage\'s depth as a list, or the least depths at full speed ("auto"); default: "1f1b", or a method\'s only one',
        Length(at_least=1),
        Each(AtLeast(1)),
    ] = None
    accumulation: Annotated[int, "micro-batches averaged into one update (the paper's k)", AtLeast(1)] = 1
    keep: Annotated[
        Literal["auto"] | KeepsByNode | None,
        'what single nodes keep for their backward, by name; "auto": for every node what is fastest within the memory limits',
    ] = None
    allow_stored: Annotated[bool, "`keep` may have delayed nodes keep their graphs, with the forward's parameters"] = (
        False
    )


@frozen(kw_only=True)
class ClipSpec:
    """Gradient clipping."""

    by: Annotated[Literal["norm", "value"], "clip the gradient's norm, or each of its values"] = "norm"
    limit: Annotated[float, "largest norm or absolute value", GreaterThan(0)]
    scope: Annotated[Literal["stage", "global"], "one norm a stage, or over all (synchronous methods)"] = "stage"


@frozen(kw_only=True)
class OptimizerSpec(PluginSpec):
    """The optimizer; every stage has its own instance."""

    name: Annotated[str, 'optimizer plugin, or "module:attribute"'] = "sgd"
    clip: Annotated[ClipSpec | None, "gradient clipping"] = None


@frozen(kw_only=True)
class LrScheduleSpec(PluginSpec):
    """The learning rate as a function of a stage's own update count."""

    name: Annotated[str, 'learning-rate schedule plugin, or "module:attribute"'] = "constant"
    warmup_epochs: Annotated[float, "linear warm-up, counted in updates (epochs)", AtLeast(0)] = 0.0
    delay_epochs: Annotated[
        float,
        "time in which the rate of a stage whose gradients are D > 1 updates late rises from 1 / D of it (PipeMare's T1) (epochs)",
        AtLeast(0),
    ] = 0.0
    scaling: Annotated[
        Literal["none", "goyal"], '"goyal" multiplies the learning rate by batch * accumulation * replicas / 256, once'
    ] = "none"


@frozen(kw_only=True)
class LossSpec(PluginSpec):
    """The function that the head minimises."""

    name: Annotated[str, 'loss plugin, or "module:attribute"'] = "cross-entropy"


@frozen(kw_only=True)
class PrecisionSpec:
    """Number formats, in arithmetic, memory and between stages."""

    compute: Annotated[
        Literal["float32", "float64", "bfloat16"],
        "bfloat16: autocast inside blocks, with float32 parameters and streams",
    ] = "float32"
    fp32_precision: Annotated[
        Literal["tf32", "ieee"],
        'of products in float32 on a GPU: "tf32" rounds factors to 10 bits, and is several times as fast',
    ] = "tf32"
    memory_format: Annotated[Literal["channels-last", "contiguous"], "layout of 4-d tensors"] = "channels-last"
    buffer_dtype: Annotated[StoredDtype, "of inputs stored until their backward; int8: one scale a tensor"] = (
        "as-streams"
    )
    channel_dtype: Annotated[StoredDtype, "of tensors between stages in training; int8: one scale a tensor"] = (
        "as-streams"
    )

    @property
    def products(self) -> Products:
        """The arithmetic of convolutions and matrix products on a GPU."""
        return self.fp32_precision if self.compute == "float32" else self.compute


def _is_apart(validation: object) -> None:
    if validation in {"train", "test"}:
        raise ValueError("must be a split of its own, or a share of the training samples")


@frozen(kw_only=True)
class DataSpec(PluginSpec):
    """The data set and its batches."""

    name: Annotated[str, 'data set plugin, or "module:attribute"']
    batch: Annotated[int, "samples in a micro-batch, of one replica", AtLeast(1)] = 64
    evaluation_batch: Annotated[int | None, "samples of an evaluation batch; default: batch", AtLeast(1)] = None
    validation: Annotated[
        float | str | None,
        "what evaluations after epochs read: a share of the training samples, drawn by the seed, or a split by name; default: the test data",
        GreaterThan(0),
        LessThan(1),
        Length(at_least=1),
        _is_apart,
    ] = None
    workers: Annotated[int, "loader processes; the samples do not depend on their number", AtLeast(0)] = 0

    @property
    def test_batch(self) -> int:
        return self.evaluation_batch or self.batch

    @property
    def evaluated(self) -> Literal["validation", "test"]:
        """The split that evaluations after epochs read."""
        return "test" if self.validation is None else "validation"


def _is_no_loss(name: str) -> None:
    if name == "loss":
        raise ValueError('must be another name than "loss", which every run records')


@frozen(kw_only=True)
class MetricSpec(PluginSpec):
    """A metric of the evaluations, with its own options."""

    recorded_as: Annotated[
        str | None,
        'name of its values in the record: "f1-micro" makes test/f1-micro; default: the plugin\'s name',
        is_file_name,
        _is_no_loss,
    ] = None


@frozen(kw_only=True)
class Spec:
    """A whole specification: exactly one of `graph` and `architecture`, and everything else with defaults."""

    name: Annotated[str, "names the run directory; default: the file's name", is_file_name] = "run"
    graph: Annotated[GraphSpec | None, "the network, node by node"] = None
    architecture: Annotated[PluginSpec | None, "the network by name, instead of `graph`"] = None
    loss: LossSpec = field(factory=LossSpec)
    method: MethodSpec = field(factory=MethodSpec)
    partition: PartitionSpec = field(factory=PartitionSpec)
    optimizer: OptimizerSpec = field(factory=OptimizerSpec)
    lr_schedule: LrScheduleSpec = field(factory=LrScheduleSpec)
    precision: PrecisionSpec = field(factory=PrecisionSpec)
    data: Annotated[DataSpec, "the data set and its batches"]
    run: RunSpec = field(factory=RunSpec)
    init: InitSpec = field(factory=InitSpec)
    checkpoint: CheckpointSpec = field(factory=CheckpointSpec)
    callback: Annotated[
        tuple[PluginSpec, ...] | None, "what observes the run or, if it says so, changes it; in this order"
    ] = None
    metric: Annotated[tuple[MetricSpec, ...] | None, "of evaluations, in addition to the loss's metrics"] = None

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

"""The specification as frozen values.

Each class is one table of the TOML file and each field one key; nothing else is accepted. `options` tables belong to
plugins: here they are plain mappings, and each plugin's own `Options` class checks them (see `registry`).
Field metadata `help` and `unit` feed `petra-graph schema`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from attrs import field, frozen
from attrs.validators import and_, ge, gt, instance_of, le, min_len, optional

from petra_graph.errors import shown
from petra_graph.spec.sizes import byte_count

Kind = Literal["reversible", "buffered", "head"]
ScheduleName = Literal["lockstep", "1f1b", "sequential", "fill-drain"]
Schedule = ScheduleName | tuple[int, ...]
"""A schedule's name, or each stage's depth."""
AskedName = Literal["lockstep", "1f1b", "sequential", "fill-drain", "auto"]
AskedSchedule = AskedName | tuple[int, ...]
"""What a specification may say: "auto" becomes a list of depths once the stages' times are known."""
Keeps = Literal["nothing", "input", "graph"]
BufferedKeeps = Literal["input", "graph"]
Uses = Literal["current", "stored"]
Flush = Literal["drain", "window"]
Dtype = Literal["uint8", "int64", "float32", "float64"]
StoredDtype = Literal["as-streams", "float32", "bfloat16", "float16", "int8"]
"""What floating-point tensors are brought to where that is smaller than their own type."""


Transport = Literal["auto", "process-group"]
Scheduling = Literal["auto", "arrival", "static"]


def key(default: Any, text: str, *, unit: str = "", validator: Any = None) -> Any:
    """Return an optional key of a table: its default, what it means, its unit and an attrs validator of its range."""
    return field(default=default, validator=validator, metadata={"help": text, "unit": unit})


def required(text: str, *, unit: str = "", validator: Any = None) -> Any:
    """Return a required key of a table."""
    return field(validator=validator, metadata={"help": text, "unit": unit})


def _some_device(_: object, __: object, value: int | tuple[str, ...]) -> None:
    if (value if isinstance(value, int) else len(value)) < 1:
        raise ValueError(f"at least one is needed (got {list(value) if isinstance(value, tuple) else value})")


def _some_stage(_: object, __: object, value: str | int | tuple[tuple[str, ...], ...]) -> None:
    if isinstance(value, int) and value < 1:
        raise ValueError(f"at least one is needed (got {value})")


def _sizes(_: object, __: object, value: str | tuple[str, ...] | None) -> None:
    for size in (value,) if isinstance(value, str) else value or ():
        byte_count(size)


def _file_name(_: object, __: object, value: str) -> None:
    """Names become parts of paths, and of the keys of weights, where "/" separates."""
    if not re.fullmatch(r"[\w-][\w.-]*", value):
        raise ValueError(
            f'must consist of letters, digits, "_", "-" and ".", and not begin with "." (got {shown(value)})'
        )


@frozen(kw_only=True)
class PluginSpec:
    """A plugin chosen by name, with its own options."""

    name: str = required("the plugin's name; `dist:name` where two packages share one")
    options: Mapping[str, Any] = field(factory=dict, metadata={"help": "the plugin's own options"})


@frozen(kw_only=True)
class InputSpec:
    """What one sample looks like when it enters the graph."""

    shape: tuple[int, ...] = required("shape of one sample, without the batch dimension", validator=min_len(1))
    dtype: Dtype = key("uint8", "element type of the data set's samples")


@frozen(kw_only=True)
class NodeSpec:
    """One node of the graph, or `repeat` of them in a row."""

    name: str = required("unique name; `repeat` makes NAME.0, NAME.1, ...", validator=and_(min_len(1), _file_name))
    block: str = required('a block plugin, or "module:Class"')
    kind: Kind | None = key(None, "what the node keeps; default: the block's own kind")
    inputs: tuple[str, ...] | None = key(None, "nodes to read, in order; default: the node before this one")
    repeat: int = key(1, "how many copies in a row", validator=ge(1))
    options: Mapping[str, Any] = field(factory=dict, metadata={"help": "the block's own options"})


@frozen(kw_only=True)
class GraphSpec:
    """The network, node by node."""

    input: InputSpec | None = key(None, "one sample; default: what the data set says")
    node: tuple[NodeSpec, ...] = required("the nodes, in order", validator=min_len(1))


@frozen(kw_only=True)
class MethodSpec:
    """How gradients are computed."""

    name: str = key("petra", "training method")
    schedule: AskedSchedule | None = key(
        None,
        "order of forwards and backwards, each stage's depth as a list, or the least depths at full speed "
        '("auto"); default: the method\'s own',
    )
    accumulation: int = key(1, "micro-batches averaged into one update (the paper's k)", validator=ge(1))
    reversible: Keeps | None = key(None, "what reversible nodes keep for the backward; default: the method's own")
    buffered: BufferedKeeps | None = key(None, "what buffered nodes keep for the backward; default: the method's own")
    backward: Uses | None = key(
        None, "the backward's parameters: those of its own time, or those of the forward; default: the method's own"
    )
    flush: Flush | None = key(
        None, 'when the pipeline empties: where the run drains anyway, or after each "window" of accumulation'
    )
    last_stage: Literal["as-others", "keep-graph"] = key(
        "as-others", '"keep-graph": the last stage keeps graphs, 3 units of work a micro-batch instead of 4'
    )


@frozen(kw_only=True)
class PartitionSpec:
    """Nodes to stages, stages to devices."""

    stages: Literal["per-block"] | int | tuple[tuple[str, ...], ...] = key(
        "per-block",
        'one stage a node ("per-block"), how many to cut by cost, or the stages by hand as lists of node names',
        validator=_some_stage,
    )
    strategy: Literal["balanced", "memory"] = key(
        "balanced", "what cutting and placing make least: the slowest device's time, or the fullest device's memory"
    )
    profile: str | None = key(
        None, "file of times that `petra-graph profile` took, for cuts and predictions; default: estimates"
    )
    devices: int | tuple[str, ...] = key(
        1, 'how many devices, or their names: ["cuda:0", "cpu"]', validator=_some_device
    )
    replicas: int = key(
        1,
        "copies of the whole pipeline, each on processes of its own with its own rows of a micro-batch",
        validator=ge(1),
    )
    sync_batch_norm: bool = key(
        False,
        "whether batch normalisation uses the statistics of all replicas' rows, and waits for them; else each its own",
    )
    device_type: str | tuple[str, ...] | None = key(
        None, "what plans take the devices for, one for all or each its own; default: what is here"
    )
    memory: str | tuple[str, ...] | None = key(
        None, 'what a device may hold, as in "40GiB", one for all or each its own; default: no limit', validator=_sizes
    )
    link_latency: float | None = key(
        None,
        "of a message between two devices, for plans; default: the device type's",
        unit="seconds",
        validator=optional(ge(0)),
    )
    link_bandwidth: float | None = key(
        None,
        "between two devices, for plans; default: the device type's",
        unit="bytes a second",
        validator=optional(gt(0)),
    )


@frozen(kw_only=True)
class ClipSpec:
    """Gradient clipping."""

    by: Literal["norm", "value"] = key("norm", "clip the gradient's norm, or each of its values")
    limit: float = required("largest norm or absolute value", validator=gt(0))
    scope: Literal["stage", "global"] = key("stage", "one norm a stage, or one over all (synchronous methods only)")


@frozen(kw_only=True)
class OptimizerSpec(PluginSpec):
    """The optimizer; every stage has its own instance."""

    name: str = key("sgd", "optimizer plugin")
    clip: ClipSpec | None = key(None, "gradient clipping")


@frozen(kw_only=True)
class LrScheduleSpec(PluginSpec):
    """The learning rate as a function of a stage's own update count."""

    name: str = key("constant", "learning-rate schedule plugin")
    warmup_epochs: float = key(0.0, "linear warm-up, counted in updates", unit="epochs", validator=ge(0))
    scaling: Literal["none", "goyal"] = key(
        "none", '"goyal" multiplies the learning rate by batch * accumulation * replicas / 256, once'
    )


@frozen(kw_only=True)
class LossSpec(PluginSpec):
    """What the head minimises."""

    name: str = key("cross-entropy", "loss plugin")


@frozen(kw_only=True)
class PrecisionSpec:
    """Number formats, in arithmetic, memory and between stages."""

    compute: Literal["float32", "float64", "bfloat16"] = key(
        "float32", "bfloat16 is autocast inside blocks, with float32 parameters and streams"
    )
    streams: Literal["float", "grid"] = key(
        "float", '"grid" rounds streams to multiples of 2^-grid_bits: additive couplings then reconstruct to the bit'
    )
    grid_bits: int = key(16, "streams must stay below 2^(24 - grid_bits) in float32", validator=and_(ge(1), le(22)))
    memory_format: Literal["channels-last", "contiguous"] = key("channels-last", "layout of 4-d tensors")
    buffer_dtype: StoredDtype = key(
        "as-streams", "what inputs are stored in until their backward, where that is smaller; int8: one scale a tensor"
    )
    buffer_device: Literal["stage", "cpu"] = key(
        "stage", 'where inputs wait for their backward: on the stage\'s device, or ("cpu") in host memory'
    )
    channel_dtype: StoredDtype = key(
        "as-streams", "what crosses between stages in training, where that is smaller; int8: one scale a tensor"
    )


@frozen(kw_only=True)
class DataSpec(PluginSpec):
    """The data set and how it is batched."""

    name: str = required("data set plugin")
    batch: int = key(64, "samples in a micro-batch, of one replica", validator=ge(1))
    evaluation_batch: int | None = key(
        None, "samples in an evaluation batch; default: batch", validator=optional(ge(1))
    )
    workers: int = key(0, "loader processes; they never change what is loaded", validator=ge(0))


@frozen(kw_only=True)
class RunSpec:
    """How long, from which seed, and where the results go."""

    epochs: int = key(1, "passes over the training data", validator=ge(1))
    seed: int = key(0, "everything random follows from it", validator=ge(0))
    threads: int = key(1, "CPU threads of a stage executor; part of what fixes the bits", validator=ge(1))
    evaluate_every: int = key(1, "evaluate after every n-th epoch and the last", unit="epochs", validator=ge(1))
    log_every: int = key(50, "record the training loss every n micro-batches", validator=ge(1))
    directory: str = key("runs", "parent of the run directories", validator=and_(instance_of(str), min_len(1)))
    watchdog: float = key(
        300.0,
        "longest that one operation of a stage may take, in a run of several processes",
        unit="seconds",
        validator=gt(0),
    )
    transport: Transport = key(
        "auto",
        'between processes: "auto" shares memory on one machine; "process-group" sends everything through torch.distributed',
    )
    scheduling: Scheduling = key(
        "auto",
        'how a process orders its stages\' operations: "arrival" begins what is ready, "static" follows one order that the '
        'plan fixes; "auto" is static on CUDA and where batch normalisation is synchronised. No number depends on it',
    )


@frozen(kw_only=True)
class ProbeSpec:
    """A look at the gradients' fidelity, as `petra-graph report RUN --figure fidelity` draws it."""

    per_epoch: int = required(
        "how many micro-batches of an epoch to look at (the paper: 15); each costs up to as many plain forwards and "
        "backwards of the network as there are stages, and one",
        validator=ge(1),
    )


@frozen(kw_only=True)
class Spec:
    """A whole specification: exactly one of `graph` and `architecture`, and everything else with defaults."""

    name: str = key("run", "names the run directory; default: the file's name", validator=and_(min_len(1), _file_name))
    graph: GraphSpec | None = key(None, "the network, node by node")
    architecture: PluginSpec | None = key(None, "the network by name, instead of `graph`")
    loss: LossSpec = field(factory=LossSpec, metadata={"help": LossSpec.__doc__})
    method: MethodSpec = field(factory=MethodSpec, metadata={"help": MethodSpec.__doc__})
    partition: PartitionSpec = field(factory=PartitionSpec, metadata={"help": PartitionSpec.__doc__})
    optimizer: OptimizerSpec = field(factory=OptimizerSpec, metadata={"help": OptimizerSpec.__doc__})
    lr_schedule: LrScheduleSpec = field(factory=LrScheduleSpec, metadata={"help": LrScheduleSpec.__doc__})
    precision: PrecisionSpec = field(factory=PrecisionSpec, metadata={"help": PrecisionSpec.__doc__})
    data: DataSpec = required("the data set and how it is batched")
    run: RunSpec = field(factory=RunSpec, metadata={"help": RunSpec.__doc__})
    probe: ProbeSpec | None = key(None, "compare the stages' gradients with delayed and end-to-end ones as they train")

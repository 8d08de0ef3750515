"""The specification as frozen values.

Each class is a table of the TOML file and each field a key; other keys are refused. `options` tables belong to plugins:
here they are plain mappings, and each plugin's own `Options` class checks them (see `registry`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, get_args

import attrs
from attrs import frozen
from attrs.validators import instance_of

from petra_graph.spec.bounds import AtLeast, AtMost, Each, GreaterThan, Length
from petra_graph.spec.intervals import IsInterval
from petra_graph.spec.keys import documented, file_name, key, options, required, sizes, table, tables
from petra_graph.spec.largest_values import (
    LARGEST_SEED,
    LEAST_RATE,
    MOST_DEPTH,
    MOST_DEVICES,
    MOST_EPOCHS,
    MOST_MICRO_BATCHES,
    MOST_NODES,
    MOST_PROCESSES,
    MOST_SAMPLES,
    MOST_SECONDS,
    MOST_WINDOW,
)

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
StoredDtype = Literal["as-streams", "float32", "bfloat16", "float16", "int8"]
Products = Literal["float64", "ieee", "tf32", "bfloat16"]
"""The type of floating-point tensors in a buffer or channel, where it is smaller than their own."""
Transport = Literal["auto", "process-group", "nccl"]
Scheduling = Literal["auto", "arrival", "static"]


@documented
@frozen(kw_only=True)
class PluginSpec:
    """A plugin chosen by name, with its own options."""

    name: str = required('the plugin\'s name; `dist:name` where two packages share one, or "module:attribute"')
    options: Mapping[str, Any] = options("plugin")


@documented
@frozen(kw_only=True)
class InputSpec:
    """Shape and type of a sample that enters the graph."""

    shape: tuple[int, ...] = required("shape of one sample, without the batch dimension", validator=Length(at_least=1))
    dtype: Dtype = key("uint8", "element type of the data set's samples")


@documented
@frozen(kw_only=True)
class NodeSpec:
    """One node of the graph, or `repeat` of them in a row."""

    name: str = required("unique name; `repeat` makes NAME.0, NAME.1, ...", validator=[Length(at_least=1), file_name])
    block: str = required('block plugin, or "module:attribute"')
    kind: Kind | None = key(None, "what the node keeps for its backward; default: the block's own kind")
    inputs: tuple[str, ...] | None = key(None, "nodes to read, in order; default: the node before this one")
    repeat: int = key(1, "number of copies in a row", validator=[AtLeast(1), MOST_NODES])
    options: Mapping[str, Any] = options("block")


@documented
@frozen(kw_only=True)
class GraphSpec:
    """The network, node by node."""

    input: InputSpec | None = key(None, "one sample; default: the data set's")
    node: tuple[NodeSpec, ...] = required("the nodes, in order", validator=Length(at_least=1))


@documented
@frozen(kw_only=True)
class MethodSpec:
    """The computation of gradients."""

    name: str = key("petra", "training method")
    schedule: RequestedSchedule | None = key(
        None,
        "order of forwards and backwards, each stage's depth as a list, or the least depths at full speed "
        '("auto"); default: the method\'s own',
        validator=[Length(at_least=1), Each(AtLeast(1), MOST_DEPTH)],
    )
    accumulation: int = key(
        1, "micro-batches averaged into one update (the paper's k)", validator=[AtLeast(1), MOST_WINDOW]
    )
    max_staleness: float | None = key(
        None,
        "the most updates between a micro-batch's forward and backward, on average in a full pipeline; it sets the least "
        "accumulation that keeps it, instead of that key",
        validator=AtLeast(0),
    )
    reversible: Keeps | None = key(None, "what a reversible node keeps for its backward; default: the method's own")
    buffered: BufferedKeeps | None = key(None, "what a buffered node keeps for its backward; default: the method's own")
    backward: Uses | None = key(None, "current parameters, or those stored at the forward; default: the method's own")
    flush: Flush | None = key(
        None,
        'when the pipeline drains: at an epoch\'s end and evaluations, or also after each "window" of accumulation',
    )
    last_stage: Literal["as-others", "keep-graph"] = key(
        "as-others", '"keep-graph": the last stage keeps graphs, 3 units of work a micro-batch instead of 4'
    )
    keep: Literal["auto"] | KeepsByNode | None = key(
        None,
        'what single nodes keep for their backward, by name; the others keep what the method says. "auto": what each node keeps follows from '
        "the memory limits, so that the plan is as fast as memory allows",
    )
    allow_stored: bool = key(
        False,
        "`keep` may have nodes of delayed stages keep their graphs, together with the parameters of the forward, which their backward then uses",
    )


@documented
@frozen(kw_only=True)
class FlopsSpec:
    """Floating-point operations a second, dense, as a data sheet has them."""

    float32: float = required("in float32, without TF32", unit="FLOP/s", validator=LEAST_RATE)
    tf32: float | None = key(
        None, "in TF32; default: half of bfloat16's, at least float32's", unit="FLOP/s", validator=LEAST_RATE
    )
    bfloat16: float | None = key(None, "in bfloat16; default: float32's", unit="FLOP/s", validator=LEAST_RATE)
    float64: float | None = key(None, "in float64; default: half of float32's", unit="FLOP/s", validator=LEAST_RATE)


@documented
@frozen(kw_only=True)
class DeviceSpec:
    """A device type that no data sheet here has; `device_type` may name it."""

    kind: Literal["cuda", "cpu"] = key("cuda", "a GPU, or a core of a CPU")
    memory: str = required('memory, as in "24GiB"', validator=sizes)
    flops: FlopsSpec = required("rate of arithmetic by type")
    memory_bandwidth: float = required("bandwidth of its memory", unit="bytes a second", validator=LEAST_RATE)
    link_latency: float = key(
        1e-5, "latency to its neighbour in the same machine", unit="seconds", validator=[AtLeast(0), MOST_SECONDS]
    )
    link_bandwidth: float = key(
        32e9,
        "bandwidth to its neighbour in the same machine, one way; default: PCIe 4.0 of 16 lanes",
        unit="bytes a second",
        validator=GreaterThan(0),
    )
    operation_seconds: float | None = key(
        None,
        "what the host takes for an operation of torch, however small its tensors are; default: measured beside one H100, or on one CPU",
        unit="seconds",
        validator=[AtLeast(0), MOST_SECONDS],
    )


@documented
@frozen(kw_only=True)
class PartitionSpec:
    """Stages of nodes, and devices of stages."""

    stages: Literal["per-block", "auto"] | int | tuple[tuple[str, ...], ...] = key(
        "per-block",
        'one stage a node ("per-block"), the number of stages to cut by cost, or each stage as a list of node names; "auto": the '
        "fewest stages, on at most the given devices, that come within 5 % of the throughput of the best number",
        validator=[AtLeast(1), MOST_NODES],
    )
    strategy: Literal["balanced", "memory"] = key(
        "balanced", "minimum that the placement seeks: the slowest device's time, or the fullest device's memory"
    )
    profile: str | None = key(
        None,
        "file of times that `petra-graph profile` measured, for cuts and predictions; default: estimates",
        is_path=True,
    )
    devices: int | tuple[str, ...] = key(
        1, 'number of devices, or names: ["cuda:0", "cpu"]', validator=[AtLeast(1), MOST_DEVICES, Length(at_least=1)]
    )
    order: Literal["searched", "listed"] = key(
        "searched",
        "order of unlike devices in the pipeline: the one that is best for the strategy, or the listed one; devices that are "
        "listed one a stage are as listed",
    )
    replicas: int = key(
        1,
        "copies of the pipeline, each with processes and rows of a micro-batch of its own",
        validator=[AtLeast(1), MOST_DEVICES],
    )
    untie: bool = key(
        False,
        "nodes of several stages that share a parameter each update a copy of their own, equal at the start, which is another model; "
        "otherwise they are refused",
    )
    sync_batch_norm: bool = key(
        False, "batch normalisation over all replicas' rows, which each layer waits for; else over each replica's own"
    )
    device_type: str | tuple[str, ...] | None = key(
        None, "device type that plans assume, one for all devices or one each; default: this machine's"
    )
    device: Mapping[str, DeviceSpec] = tables("device types of your own, by the names that device_type gives them")
    memory: str | tuple[str, ...] | None = key(
        None,
        'memory limit of a device, as in "40GiB", one for all or one each, at most what it has; default: what it has',
        validator=sizes,
    )
    link_latency: float | None = key(
        None,
        "latency between devices, for plans; default: the device type's",
        unit="seconds",
        validator=[AtLeast(0), MOST_SECONDS],
    )
    link_bandwidth: float | None = key(
        None,
        "bandwidth between devices, for plans; default: the device type's",
        unit="bytes a second",
        validator=GreaterThan(0),
    )


@documented
@frozen(kw_only=True)
class ClipSpec:
    """Gradient clipping."""

    by: Literal["norm", "value"] = key("norm", "clip the gradient's norm, or each of its values")
    limit: float = required("largest norm or absolute value", validator=GreaterThan(0))
    scope: Literal["stage", "global"] = key("stage", "one norm a stage, or one over all (synchronous methods only)")


@documented
@frozen(kw_only=True)
class OptimizerSpec(PluginSpec):
    """The optimizer; every stage has its own instance."""

    name: str = key("sgd", 'optimizer plugin, or "module:attribute"')
    clip: ClipSpec | None = key(None, "gradient clipping")
    delay: Mapping[str, Any] | None = key(
        None, "corrections of late gradients, around any optimizer; its keys are those of petra-graph-delay"
    )


@documented
@frozen(kw_only=True)
class LrScheduleSpec(PluginSpec):
    """The learning rate as a function of a stage's own update count."""

    name: str = key("constant", 'learning-rate schedule plugin, or "module:attribute"')
    warmup_epochs: float = key(
        0.0, "linear warm-up, counted in updates", unit="epochs", validator=[AtLeast(0), MOST_EPOCHS]
    )
    delay_epochs: float = key(
        0.0,
        "how long the learning rate of a stage whose gradients are D > 1 updates late takes to rise from 1 / D of it (PipeMare's T1)",
        unit="epochs",
        validator=[AtLeast(0), MOST_EPOCHS],
    )
    scaling: Literal["none", "goyal"] = key(
        "none", '"goyal" multiplies the learning rate by batch * accumulation * replicas / 256, once'
    )


@documented
@frozen(kw_only=True)
class LossSpec(PluginSpec):
    """The function that the head minimises."""

    name: str = key("cross-entropy", 'loss plugin, or "module:attribute"')


@documented
@frozen(kw_only=True)
class PrecisionSpec:
    """Number formats, in arithmetic, memory and between stages."""

    compute: Literal["float32", "float64", "bfloat16"] = key(
        "float32", "bfloat16 is autocast inside blocks, with float32 parameters and streams"
    )
    fp32_precision: Literal["tf32", "ieee"] = key(
        "tf32",
        'of convolutions and matrix products in float32 on a GPU: "tf32" rounds their factors to 10 bits, and is several times as fast; '
        '"ieee" keeps all 23; without effect on a CPU',
    )
    streams: Literal["float", "grid"] = key(
        "float", '"grid" rounds streams to multiples of 2^-grid_bits: additive couplings then reconstruct to the bit'
    )
    grid_bits: int = key(
        16, "streams must stay below 2^(24 - grid_bits) in float32", validator=[AtLeast(1), AtMost(22)]
    )
    memory_format: Literal["channels-last", "contiguous"] = key("channels-last", "layout of 4-d tensors")
    buffer_dtype: StoredDtype = key(
        "as-streams", "type of the inputs stored until their backward, if it is smaller; int8: one scale a tensor"
    )
    buffer_device: Literal["stage", "cpu"] = key(
        "stage", 'memory of the inputs stored until their backward: the stage\'s device, or ("cpu") the host'
    )
    channel_dtype: StoredDtype = key(
        "as-streams", "type of the tensors between stages in training, if it is smaller; int8: one scale a tensor"
    )

    @property
    def products(self) -> Products:
        """The arithmetic of convolutions and matrix products on a GPU."""
        return self.fp32_precision if self.compute == "float32" else self.compute


@documented
@frozen(kw_only=True)
class DataSpec(PluginSpec):
    """The data set and its batches."""

    name: str = required('data set plugin, or "module:attribute"')
    batch: int = key(64, "samples in a micro-batch, of one replica", validator=[AtLeast(1), MOST_SAMPLES])
    evaluation_batch: int | None = key(
        None, "samples of an evaluation batch; default: batch", validator=[AtLeast(1), MOST_SAMPLES]
    )
    workers: int = key(
        0, "loader processes; the samples do not depend on their number", validator=[AtLeast(0), MOST_PROCESSES]
    )

    @property
    def test_batch(self) -> int:
        return self.evaluation_batch or self.batch


@documented
@frozen(kw_only=True)
class RunSpec:
    """Length, seed, processes and directory of a run."""

    epochs: int = key(1, "passes over the training data", validator=[AtLeast(1), MOST_EPOCHS])
    seed: int = key(0, "seed of every random number", validator=[AtLeast(0), LARGEST_SEED])
    threads: int = key(
        1,
        "CPU threads of a stage executor; the last bits of results depend on it",
        validator=[AtLeast(1), MOST_PROCESSES],
    )
    evaluate_every: int = key(
        1, "evaluate after every n-th epoch and the last", unit="epochs", validator=[AtLeast(1), MOST_EPOCHS]
    )
    log_every: int = key(
        50, "record the training loss every n micro-batches", validator=[AtLeast(1), MOST_MICRO_BATCHES]
    )
    micro_batches: int | None = key(
        None,
        "most micro-batches of an epoch, the first of its order; default: all",
        validator=[AtLeast(1), MOST_MICRO_BATCHES],
    )
    evaluation_batches: int | None = key(
        None,
        "most batches of an evaluation, of samples that are spread over the data, the same in all runs; default: all",
        validator=[AtLeast(1), MOST_MICRO_BATCHES],
    )
    overfit: bool = key(
        False,
        "every epoch has the micro-batches of the first one, and an evaluation reads their samples, not the test data",
    )
    self_check: bool = key(
        True,
        "try plugins of other packages in this network before it trains, if petra-graph-conformance is installed, see whether loss, metrics "
        "and `checkpoint.best` fit head and data, and observe the first passes of every block for random "
        "numbers that no seed fixes and for state that its recomputation would advance, and the first updates of every stage for "
        "parameters that nothing trains; no result depends on it",
    )
    compile: bool = key(
        False,
        "compile what blocks compute in training, by torch.compile; takes up to minutes before the training, and changes the last bits of "
        "results",
    )
    cuda_graphs: Literal["auto", "off"] = key(
        "off",
        '"auto": record the passes of segments as CUDA graphs where that can be, say once where it cannot, and replay them; results keep '
        "their bits. A plan does not count the graphs' memory",
    )
    directory: str = key(
        "runs",
        "parent of the run directories; relative to the working directory, wherever the specification lies",
        validator=[instance_of(str), Length(at_least=1)],
    )
    watchdog: float = key(
        300.0,
        "longest time of one operation of a stage, after which a run of several processes fails",
        unit="seconds",
        validator=[GreaterThan(0), MOST_SECONDS],
    )
    transport: Transport = key(
        "auto",
        'channels between processes: "auto" uses shared memory within a machine; "process-group" uses torch.distributed only; '
        '"nccl" sends from GPU to GPU, and on CPUs gloo takes its place',
    )
    scheduling: Scheduling = key(
        "auto",
        'policy of the scheduler: "arrival" begins an operation when its messages have arrived, "static" follows the '
        'plan\'s fixed order; "auto" is static on CUDA and with sync_batch_norm; no result depends on it',
    )


@documented
@frozen(kw_only=True)
class ProbeSpec:
    """Samples of the gradients' fidelity, which `petra-graph report RUN --figure fidelity` draws."""

    per_epoch: int = required(
        "micro-batches of an epoch to probe (the paper: 15); each costs at most one plain forward and backward of the "
        "network for each stage, and one more",
        validator=[AtLeast(1), MOST_MICRO_BATCHES],
    )


@documented
@frozen(kw_only=True)
class InitSpec:
    """Parameters and running statistics at the start."""

    weights: str | None = key(
        None,
        "`weights.safetensors` of a run, a run's directory, or a `state_dict` with the names of the nodes' parameters "
        "(safetensors or torch.save), to begin with; default: random, from the seed",
        is_path=True,
    )
    reader: str | None = key(
        None,
        'function "module:attribute" of an installed package, (path) -> WeightFile, that reads `weights` of another format; '
        "default: safetensors and torch.save are read",
    )
    strict: bool = key(True, "refuse a file in which anything is missing, or of another shape, or too much")
    leave_out: tuple[str, ...] = key(
        (),
        "nodes and tensors of the network, or of the file, that the file is not asked for, by name or pattern: "
        '"head", "*/alpha"',
        validator=Each(Length(at_least=1)),
    )


@documented
@frozen(kw_only=True)
class CheckpointSpec:
    """Checkpoints of a run, from which it continues as if nothing had happened; one is always written at an interruption."""

    every: str | None = key(
        None,
        'interval between checkpoints, as in "1 epoch", "500 updates" or "10 min"; default: only at an interruption',
        validator=IsInterval(),
    )
    keep: int = key(3, "latest checkpoints to keep", validator=[AtLeast(1), AtMost(1000)])
    best: str | None = key(
        None,
        'metric of the evaluations, as in "test/top1", whose best checkpoint is kept in addition to the latest ones',
    )
    best_is: Literal["largest", "smallest"] | None = key(
        None,
        'which value of the metric is best; default: the smallest "test/loss", of a listed metric what it declares, '
        "the largest of any other",
    )
    signal: Literal["SIGUSR1", "SIGUSR2"] | None = key(
        None, "a further signal at which the run writes a checkpoint and stops, as batch systems send one beforehand"
    )
    asynchronous: bool = key(True, "write files while the training continues; no number depends on it")


def _label(_: object, __: object, value: str | None) -> None:
    if value is None:
        return
    file_name(_, __, value)
    if value == "loss":
        raise ValueError('must be another name than "loss", which every run records')


@documented
@frozen(kw_only=True)
class MetricSpec(PluginSpec):
    """A metric of the evaluations, with its own options."""

    recorded_as: str | None = key(
        None,
        'name of its values in the record: "f1-micro" makes test/f1-micro; default: the plugin\'s name',
        validator=_label,
    )


@documented
@frozen(kw_only=True)
class Spec:
    """A whole specification: exactly one of `graph` and `architecture`, and everything else with defaults."""

    name: str = key(
        "run", "names the run directory; default: the file's name", validator=[Length(at_least=1), file_name]
    )
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
    logger: tuple[PluginSpec, ...] | None = key(
        None,
        "other places for the values of `metrics.jsonl`, which is always written; default: TensorBoard, if it is "
        "installed",
    )
    callback: tuple[PluginSpec, ...] | None = key(
        None, "what observes the run or, if it says so, changes it; called in the order of the list"
    )
    metric: tuple[MetricSpec, ...] | None = key(
        None, "what is computed from all outputs and targets of an evaluation, in addition to the loss's metrics"
    )
    probe: ProbeSpec | None = key(None, "compare the stages' gradients with delayed and end-to-end ones as they train")

    def replace(self, changes: Mapping[str, Any]) -> Spec:
        """Return the specification with some values changed, as `--set` changes them.

        Args:
            changes: values by key, as in {"run.epochs": 3, "graph.node.stem.options.channels": 8}.

        Raises:
            SpecError: keys or values are wrong; all problems.
        """
        from petra_graph.errors import SpecError
        from petra_graph.spec.load_spec import load  # which imports this module
        from petra_graph.spec.overrides import assignments

        loaded = load(self, assignments(changes), type(self))
        if loaded.spec is None:
            raise SpecError(loaded.problems)
        return loaded.spec


OfPlugins: Any = tuple[PluginSpec, ...] | None
"""The type of an array of tables each of which names a plugin."""


@lru_cache(maxsize=8)
def with_tables(added: tuple[tuple[str, Any, str], ...]) -> type[Spec]:
    """Return the class of specifications with further tables, of (name, type, meaning); the same one for the same tables."""
    fields = {
        name: attrs.field(default=None, type=type_, metadata={"help": text, "unit": ""}) for name, type_, text in added
    }
    return attrs.make_class("Spec", fields, bases=(Spec,), frozen=True, kw_only=True) if added else Spec


def plugin_tables(spec_class: type[Spec]) -> Iterator[tuple[str, type[PluginSpec]]]:
    """Yield the tables of a specification that name a plugin, each with its class."""
    for field in attrs.fields(attrs.resolve_types(spec_class)):
        of_field = get_args(field.type) or (field.type,)
        if isinstance(of_field[0], type) and issubclass(of_field[0], PluginSpec):
            yield field.name, of_field[0]


def plugin_lists(spec_class: type[Spec]) -> dict[str, type[PluginSpec]]:
    """Return the arrays of tables each of which names a plugin, with the class of their tables."""
    found = {}
    for field in attrs.fields(attrs.resolve_types(spec_class)):
        item, *_ = (*get_args(next(iter(get_args(field.type)), None)), None)
        if isinstance(item, type) and issubclass(item, PluginSpec):
            found[field.name] = item
    return found

"""The specification as frozen values.

Each class is a table of the TOML file and each field a key, with its type, its meaning and its bounds; other keys are refused. `options` tables
belong to plugins: here they are plain mappings, which the signature of each plugin checks (`plugins.contract`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from attrs import field, frozen

from petra_graph.errors import SpecError
from petra_graph.spec.strict_values import AtLeast, AtMost, GreaterThan, Length, LessThan
from petra_graph.units import byte_count

Kind = Literal["reversible", "buffered", "head"]
ScheduleName = Literal["lockstep", "1f1b", "sequential", "fill-drain"]
Schedule = ScheduleName | tuple[int, ...]
RequestedScheduleName = Literal["lockstep", "1f1b", "sequential", "fill-drain", "auto"]
RequestedSchedule = RequestedScheduleName | tuple[Annotated[int, AtLeast(1)], ...]
Keeps = Literal["nothing", "input", "graph"]
BufferedKeeps = Literal["input", "graph"]
KeepsByNode = Mapping[str, Keeps]
Uses = Literal["current", "stored"]
Flush = Literal["drain", "window"]
Dtype = Literal["uint8", "int64", "float32", "float64"]
StoredDtype = Literal["as-streams", "bfloat16", "int8"]
Products = Literal["float64", "ieee", "tf32", "bfloat16"]
Transport = Literal["auto", "process-group", "nccl"]
Scheduling = Literal["auto", "arrival", "static"]
Size = Annotated[str, byte_count]
Names = tuple[Annotated[str, Length(at_least=1)], ...]
MOST_NODES = 20_000  # the planner's work and the page of a plan grow with them


@frozen
class Interval:
    count: int
    unit: Literal["epochs", "updates"]


def interval(text: str) -> Interval:
    match = re.fullmatch(r"0*([1-9]\d*) ?(epoch|update)s?", text.strip())
    if match is None:
        raise ValueError('must be a whole number of epochs or updates, as in "500 updates"')
    return Interval(int(match[1]), "epochs" if match[2] == "epoch" else "updates")


def _is_file_name(name: str) -> None:
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        raise ValueError('must consist of letters, digits, "_", "-" and ".", and not begin with "."')


def _is_apart(validation: object) -> None:
    if validation in {"train", "test"}:
        raise ValueError("must be a split of its own, or a share of the training samples")


# fmt: off
# A key is a line: its type, what it means, its bounds, its default.


@frozen(kw_only=True)
class PluginSpec:
    """A plugin chosen by name, with its own options."""

    name: Annotated[str, 'the plugin\'s name, or "module:attribute"']
    options: Annotated[Mapping[str, Any], "the plugin's own options"] = field(factory=dict)


@frozen(kw_only=True)
class NodeSpec:
    """One node of the graph, or `repeat` of them in a row."""

    name: Annotated[str, "unique name; `repeat` makes NAME.0, NAME.1, ...", _is_file_name]
    block: Annotated[str, 'block plugin, or "module:attribute"']
    kind: Annotated[Kind | None, "what the node keeps for its backward; default: the block's own kind"] = None
    inputs: Annotated[tuple[str, ...] | None, "nodes to read, in order; default: the node before this one"] = None
    repeat: Annotated[int, "number of copies in a row", AtLeast(1), AtMost(MOST_NODES)] = 1
    options: Annotated[Mapping[str, Any], "the block's own options"] = field(factory=dict)


@frozen(kw_only=True)
class GraphSpec:
    node: Annotated[tuple[NodeSpec, ...], "the nodes, in order", Length(at_least=1)]


@frozen(kw_only=True)
class LossSpec(PluginSpec):
    """The function that the head minimises."""

    name: Annotated[str, 'loss plugin, or "module:attribute"'] = "cross-entropy"


@frozen(kw_only=True)
class MethodSpec:
    """The computation of gradients."""

    name: Annotated[str, "training method"] = "petra"
    schedule: Annotated[
        RequestedSchedule | None, 'order of passes, or the stages\' depths; "auto": the least at full speed; default: "1f1b", or the only one', Length(at_least=1)
    ] = None
    accumulation: Annotated[int, "micro-batches averaged into one update (the paper's k)", AtLeast(1)] = 1
    keep: Annotated[Literal["auto"] | KeepsByNode | None, 'what nodes keep for their backward, by name; "auto": what is fastest'] = None
    allow_stored: Annotated[bool, "`keep` may have delayed nodes keep their graphs, with the forward's parameters"] = False


@frozen(kw_only=True)
class DeviceSpec:
    """A device type that no data sheet here has; `device_type` may name it."""

    kind: Annotated[Literal["cuda", "cpu"], "a GPU, or a core of a CPU"] = "cuda"
    memory: Annotated[Size, 'memory, as in "24GiB"']
    float32_flops: Annotated[float, "dense products in float32, without TF32, as on the data sheet (FLOP/s)", GreaterThan(0)]
    bfloat16_flops: Annotated[float | None, "in bfloat16; default: float32's (FLOP/s)", GreaterThan(0)] = None
    memory_bandwidth: Annotated[float, "bandwidth of its memory (bytes a second)", GreaterThan(0)]
    link_latency: Annotated[float, "latency to its neighbour in the machine (seconds)", AtLeast(0)] = 1e-5
    link_bandwidth: Annotated[float, "to its neighbour, one way; default: PCIe 4.0 x16 (bytes a second)", GreaterThan(0)] = 32e9
    operation_seconds: Annotated[float | None, "the host's time for an operation; default: measured with an H100, or a CPU (seconds)", AtLeast(0)] = None


@frozen(kw_only=True)
class PartitionSpec:
    """Stages of nodes, and devices of stages."""

    stages: Annotated[
        Literal["per-block", "auto"] | int | tuple[tuple[str, ...], ...],
        'a stage a node, their number, to be cut by cost, or each as a list of nodes; "auto": the fewest within 5 % of the best throughput',
        AtLeast(1), AtMost(MOST_NODES),
    ] = "per-block"
    profile: Annotated[str | None, "file of times that `petra-graph profile` measured; default: estimates"] = None
    devices: Annotated[int | tuple[str, ...], 'of each replica: their number, or names: ["cuda:0", "cpu"]', AtLeast(1), Length(at_least=1)] = 1
    replicas: Annotated[int, "copies of the pipeline, each with processes and rows of a micro-batch of its own", AtLeast(1)] = 1
    untie: Annotated[bool, "nodes of several stages that share a parameter each update a copy: another model; default: refused"] = False
    device_type: Annotated[str | tuple[str, ...] | None, "device type that plans assume, one for all devices or one each; default: this machine's"] = None
    device: Annotated[Mapping[str, DeviceSpec], "device types of your own, by the names that device_type gives them"] = field(factory=dict)
    memory: Annotated[Size | tuple[Size, ...] | None, 'memory limit of a device, as in "40GiB", one for all or one each; default: what it has'] = None
    link_latency: Annotated[float | None, "between devices, for plans; default: the type's (seconds)", AtLeast(0)] = None
    link_bandwidth: Annotated[float | None, "between devices, for plans; default: the type's (bytes a second)", GreaterThan(0)] = None


@frozen(kw_only=True)
class ClipSpec:
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
    delay_epochs: Annotated[float, "rise from 1 / D of the rate, where gradients are D > 1 updates late (PipeMare's T1) (epochs)", AtLeast(0)] = 0.0
    scaling: Annotated[Literal["none", "goyal"], '"goyal" multiplies the learning rate by batch * accumulation * replicas / 256, once'] = "none"


@frozen(kw_only=True)
class PrecisionSpec:
    """Number formats, in arithmetic, memory and between stages."""

    compute: Annotated[Literal["float32", "float64", "bfloat16"], "bfloat16: autocast inside blocks, with float32 parameters and streams"] = "float32"
    fp32_precision: Annotated[Literal["tf32", "ieee"], 'products in float32 on a GPU; "tf32" rounds factors to 10 bits, and is faster'] = "tf32"
    memory_format: Annotated[Literal["channels-last", "contiguous"], "layout of 4-d tensors"] = "channels-last"
    buffer_dtype: Annotated[StoredDtype, "of inputs stored until their backward; int8: one scale a tensor"] = "as-streams"
    channel_dtype: Annotated[StoredDtype, "of tensors between stages in training; int8: one scale a tensor"] = "as-streams"

    @property
    def products(self) -> Products:
        return self.fp32_precision if self.compute == "float32" else self.compute


@frozen(kw_only=True)
class DataSpec(PluginSpec):
    batch: Annotated[int, "samples in a micro-batch, of one replica", AtLeast(1)] = 64
    evaluation_batch: Annotated[int | None, "samples of an evaluation batch; default: batch", AtLeast(1)] = None
    validation: Annotated[
        float | str | None, "what evaluations after epochs read: a drawn share of the training samples, or a split; default: the test data",
        GreaterThan(0), LessThan(1), Length(at_least=1), _is_apart,
    ] = None
    workers: Annotated[int, "loader processes; the samples do not depend on their number", AtLeast(0)] = 0

    @property
    def test_batch(self) -> int:
        return self.evaluation_batch or self.batch

    @property
    def evaluated(self) -> Literal["validation", "test"]:
        return "test" if self.validation is None else "validation"


@frozen(kw_only=True)
class RunSpec:
    """Length, seed, processes and directory of a run."""

    epochs: Annotated[int, "passes over the training data", AtLeast(1)] = 1
    seed: Annotated[int, "seed of every random number", AtLeast(0)] = 0
    threads: Annotated[int, "CPU threads of a stage executor; the last bits of results depend on it", AtLeast(1)] = 1
    evaluate_every: Annotated[int, "evaluate after every n-th epoch and the last (epochs)", AtLeast(1)] = 1
    log_every: Annotated[int, "record the training loss every n micro-batches", AtLeast(1)] = 50
    micro_batches: Annotated[int | None, "most micro-batches of an epoch, in its order; default: all; a stream of samples needs it", AtLeast(1)] = None
    evaluation_batches: Annotated[int | None, "most batches of an evaluation, spread over the data, the same in all runs; default: all", AtLeast(1)] = None
    compile: Annotated[bool, "compile blocks by torch.compile; takes minutes at first, and changes the last bits of results"] = False
    record: Annotated[
        Literal["off", "calls", "graphs"], "replay recorded passes, with the same bits: torch's operations, or CUDA graphs, whose memory no plan counts"
    ] = "off"
    directory: Annotated[str, "parent of run directories, from the working directory", Length(at_least=1)] = "runs"
    watchdog: Annotated[float, "longest time of an operation, after which a run of several processes fails (seconds)", GreaterThan(0)] = 300.0
    transport: Annotated[Transport, '"auto": shared memory in a machine; "process-group": torch.distributed; "nccl": GPU to GPU'] = "auto"
    scheduling: Annotated[Scheduling, 'begin operations on "arrival" of messages, or in the plan\'s order; "auto": static on CUDA; same bits'] = "auto"


@frozen(kw_only=True)
class InitSpec:
    """Parameters and running statistics at the start."""

    weights: Annotated[str | None, "a run, or a `state_dict` (safetensors or torch.save); default: random, from the seed"] = None
    leave_out: Annotated[Names, 'nodes and tensors that stay out, by name or pattern: "head", "*/alpha"'] = ()
    freeze: Annotated[Names, 'nodes and parameters that are not trained: "stem", "layer*", "*.bias"'] = ()


@frozen(kw_only=True)
class CheckpointSpec:
    """Checkpoints of a run, from which it continues as if nothing had happened; one is always written at an interruption."""

    every: Annotated[str | None, 'as in "1 epoch" or "500 updates"; default: only at an interruption', interval] = None
    keep: Annotated[int, "latest checkpoints to keep", AtLeast(1), AtMost(1000)] = 3
    best: Annotated[str | None, 'metric of evaluations, as in "validation/top1" or "test/top1", whose best checkpoint is kept besides'] = None


@frozen(kw_only=True)
class MetricSpec(PluginSpec):
    recorded_as: Annotated[str | None, 'name of its values: "f1-micro" makes test/f1-micro; default: the plugin\'s', _is_file_name] = None


@frozen(kw_only=True)
class Spec:
    """A whole specification: exactly one of `graph` and `architecture`, and everything else with defaults."""

    name: Annotated[str, "names the run directory; default: the file's name", _is_file_name] = "run"
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
    callback: Annotated[tuple[PluginSpec, ...] | None, "what observes the run or, if it says so, changes it; in this order"] = None
    metric: Annotated[tuple[MetricSpec, ...] | None, "of evaluations, in addition to the loss's metrics"] = None

    def replace(self, changes: Mapping[str, Any]) -> Spec:
        """Return the specification with values changed by key, as in {"run.epochs": 3, "graph.node.stem.options.channels": 8}; SpecError: all problems."""
        from petra_graph.spec.in_code import assignments
        from petra_graph.spec.load_spec import load  # which imports this module

        loaded = load(self, assignments(changes))
        if loaded.spec is None:
            raise SpecError(loaded.problems)
        return loaded.spec

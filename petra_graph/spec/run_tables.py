"""The tables of a specification about devices and stages, and about the run: its length, its beginning, its checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from attrs import field, frozen

from petra_graph.errors import shown
from petra_graph.spec.strict_values import NODES, AtLeast, AtMost, Each, GreaterThan, Length, is_size

Transport = Literal["auto", "process-group", "nccl"]
Scheduling = Literal["auto", "arrival", "static"]


@frozen(kw_only=True)
class FlopsSpec:
    """Floating-point operations a second, dense, as a data sheet has them."""

    float32: Annotated[float, "in float32, without TF32 (FLOP/s)", GreaterThan(0)]
    tf32: Annotated[float | None, "default: half of bfloat16's, at least float32's (FLOP/s)", GreaterThan(0)] = None
    bfloat16: Annotated[float | None, "default: float32's (FLOP/s)", GreaterThan(0)] = None
    float64: Annotated[float | None, "default: half of float32's (FLOP/s)", GreaterThan(0)] = None


@frozen(kw_only=True)
class DeviceSpec:
    """A device type that no data sheet here has; `device_type` may name it."""

    kind: Annotated[Literal["cuda", "cpu"], "a GPU, or a core of a CPU"] = "cuda"
    memory: Annotated[str, 'memory, as in "24GiB"', is_size, Each(is_size)]
    flops: Annotated[FlopsSpec, "rate of arithmetic by type"]
    memory_bandwidth: Annotated[float, "bandwidth of its memory (bytes a second)", GreaterThan(0)]
    link_latency: Annotated[float, "latency to its neighbour in the machine (seconds)", AtLeast(0)] = 1e-5
    link_bandwidth: Annotated[
        float, "to its neighbour, one way; default: PCIe 4.0 x16 (bytes a second)", GreaterThan(0)
    ] = 32e9
    operation_seconds: Annotated[
        float | None,
        "the host's time for any operation of torch; default: as measured with an H100, or on a CPU (seconds)",
        AtLeast(0),
    ] = None


@frozen(kw_only=True)
class PartitionSpec:
    """Stages of nodes, and devices of stages."""

    stages: Annotated[
        Literal["per-block", "auto"] | int | tuple[tuple[str, ...], ...],
        'one stage a node ("per-block"), the number of stages to cut by cost, or each stage as a list of node names; "auto": the '
        "fewest stages, on at most the given devices, that come within 5 % of the throughput of the best number",
        AtLeast(1),
        AtMost(NODES),
    ] = "per-block"
    profile: Annotated[str | None, "file of times that `petra-graph profile` measured; default: estimates"] = None
    devices: Annotated[
        int | tuple[str, ...],
        'of each replica: their number, or names: ["cuda:0", "cpu"]',
        AtLeast(1),
        Length(at_least=1),
    ] = 1
    replicas: Annotated[
        int, "copies of the pipeline, each with processes and rows of a micro-batch of its own", AtLeast(1)
    ] = 1
    untie: Annotated[
        bool, "nodes of several stages that share a parameter each update a copy: another model; default: refused"
    ] = False
    device_type: Annotated[
        str | tuple[str, ...] | None,
        "device type that plans assume, one for all devices or one each; default: this machine's",
    ] = None
    device: Annotated[
        Mapping[str, DeviceSpec], "device types of your own, by the names that device_type gives them"
    ] = field(factory=dict)
    memory: Annotated[
        str | tuple[str, ...] | None,
        'memory limit of a device, as in "40GiB", one for all or one each; default: what it has',
        is_size,
        Each(is_size),
    ] = None
    link_latency: Annotated[float | None, "between devices, for plans; default: the type's (seconds)", AtLeast(0)] = (
        None
    )
    link_bandwidth: Annotated[
        float | None, "between devices, for plans; default: the type's (bytes a second)", GreaterThan(0)
    ] = None


@frozen(kw_only=True)
class RunSpec:
    """Length, seed, processes and directory of a run."""

    epochs: Annotated[int, "passes over the training data", AtLeast(1)] = 1
    seed: Annotated[int, "seed of every random number", AtLeast(0)] = 0
    threads: Annotated[int, "CPU threads of a stage executor; the last bits of results depend on it", AtLeast(1)] = 1
    evaluate_every: Annotated[int, "evaluate after every n-th epoch and the last (epochs)", AtLeast(1)] = 1
    log_every: Annotated[int, "record the training loss every n micro-batches", AtLeast(1)] = 50
    micro_batches: Annotated[
        int | None,
        "most micro-batches of an epoch, in its order; default: all; a stream of samples needs it",
        AtLeast(1),
    ] = None
    evaluation_batches: Annotated[
        int | None,
        "most batches of an evaluation, spread over the data, the same in all runs; default: all",
        AtLeast(1),
    ] = None
    compile: Annotated[
        bool, "compile blocks by torch.compile; takes minutes at first, and changes the last bits of results"
    ] = False
    record: Annotated[
        Literal["off", "calls", "graphs"],
        'record the passes of segments, and replay them, with the same bits: "calls", as flat lists of torch\'s operations, on any device; '
        '"graphs", as CUDA graphs, whose memory a plan does not count',
    ] = "off"
    directory: Annotated[str, "parent of run directories, from the working directory", Length(at_least=1)] = "runs"
    watchdog: Annotated[
        float, "longest time of an operation, after which a run of several processes fails (seconds)", GreaterThan(0)
    ] = 300.0
    transport: Annotated[
        Transport,
        'channels between processes: "auto" is shared memory within a machine, "process-group" torch.distributed, "nccl" GPU to GPU',
    ] = "auto"
    scheduling: Annotated[
        Scheduling,
        '"arrival" begins an operation when its messages have arrived, "static" follows the plan\'s order; "auto": static on CUDA; no result '
        "depends on it",
    ] = "auto"


@frozen(kw_only=True)
class InitSpec:
    """Parameters and running statistics at the start."""

    weights: Annotated[
        str | None, "a run, or a `state_dict` (safetensors or torch.save); default: random, from the seed"
    ] = None
    leave_out: Annotated[
        tuple[str, ...],
        'nodes and tensors that stay out, by name or pattern: "head", "*/alpha"',
        Each(Length(at_least=1)),
    ] = ()
    freeze: Annotated[
        tuple[str, ...],
        'nodes and parameters that are not trained: "stem", "layer*", "*.bias"',
        Each(Length(at_least=1)),
    ] = ()


@frozen
class Interval:
    """A number of a unit, above 0."""

    count: int
    unit: Literal["epochs", "updates"]


def interval(text: str) -> Interval:
    """Read an interval. Raises ValueError: the text is not an interval."""
    match = re.fullmatch(r"0*([1-9]\d*) ?(epoch|update)s?", text.strip())
    if match is None:
        raise ValueError(f'must be a whole number of epochs or updates, as in "500 updates" (got {shown(text)})')
    return Interval(int(match[1]), "epochs" if match[2] == "epoch" else "updates")


@frozen(kw_only=True)
class CheckpointSpec:
    """Checkpoints of a run, from which it continues as if nothing had happened; one is always written at an interruption."""

    every: Annotated[str | None, 'as in "1 epoch" or "500 updates"; default: only at an interruption', interval] = None
    keep: Annotated[int, "latest checkpoints to keep", AtLeast(1), AtMost(1000)] = 3
    best: Annotated[
        str | None,
        'metric of evaluations, as in "validation/top1" or "test/top1", whose best checkpoint is kept besides',
    ] = None
    signal: Annotated[
        Literal["SIGUSR1", "SIGUSR2"] | None,
        "a further signal at which the run stops with a checkpoint, as of batch systems",
    ] = None

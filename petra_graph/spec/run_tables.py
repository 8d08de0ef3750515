"""The tables of a specification about devices and stages, and about the run: its length, its beginning, its checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from attrs import frozen

from petra_graph.errors import shown
from petra_graph.spec.keys import (
    MOST_NODES,
    SIZE,
    AtLeast,
    AtMost,
    Each,
    GreaterThan,
    Length,
    key,
    required,
    rule,
    table,
)

Transport = Literal["auto", "process-group", "nccl"]
Scheduling = Literal["auto", "arrival", "static"]
Unit = Literal["epochs", "updates", "seconds"]


@frozen(kw_only=True)
class FlopsSpec:
    """Floating-point operations a second, dense, as a data sheet has them."""

    float32: float = required("in float32, without TF32 (FLOP/s)", GreaterThan(0))
    tf32: float | None = key(None, "in TF32; default: half of bfloat16's, at least float32's (FLOP/s)", GreaterThan(0))
    bfloat16: float | None = key(None, "in bfloat16; default: float32's (FLOP/s)", GreaterThan(0))
    float64: float | None = key(None, "in float64; default: half of float32's (FLOP/s)", GreaterThan(0))


@frozen(kw_only=True)
class DeviceSpec:
    """A device type that no data sheet here has; `device_type` may name it."""

    kind: Literal["cuda", "cpu"] = key("cuda", "a GPU, or a core of a CPU")
    memory: str = required('memory, as in "24GiB"', SIZE, Each(SIZE))
    flops: FlopsSpec = required("rate of arithmetic by type")
    memory_bandwidth: float = required("bandwidth of its memory (bytes a second)", GreaterThan(0))
    link_latency: float = key(1e-5, "latency to its neighbour in the same machine (seconds)", AtLeast(0))
    link_bandwidth: float = key(
        32e9,
        "bandwidth to its neighbour in the same machine, one way; default: PCIe 4.0 of 16 lanes (bytes a second)",
        GreaterThan(0),
    )
    operation_seconds: float | None = key(
        None,
        "what the host takes for an operation of torch, however small its tensors are; default: measured beside one H100, or on one CPU (seconds)",
        AtLeast(0),
    )


@frozen(kw_only=True)
class PartitionSpec:
    """Stages of nodes, and devices of stages."""

    stages: Literal["per-block", "auto"] | int | tuple[tuple[str, ...], ...] = key(
        "per-block",
        'one stage a node ("per-block"), the number of stages to cut by cost, or each stage as a list of node names; "auto": the '
        "fewest stages, on at most the given devices, that come within 5 % of the throughput of the best number",
        AtLeast(1),
        MOST_NODES,
    )
    profile: str | None = key(
        None, "file of times that `petra-graph profile` measured, for cuts and predictions; default: estimates"
    )
    devices: int | tuple[str, ...] = key(
        1, 'devices of each replica: their number, or names: ["cuda:0", "cpu"]', AtLeast(1), Length(at_least=1)
    )
    replicas: int = key(
        1, "copies of the pipeline, each with processes and rows of a micro-batch of its own", AtLeast(1)
    )
    untie: bool = key(
        False,
        "nodes of several stages that share a parameter each update a copy, which is another model; otherwise they are refused",
    )
    device_type: str | tuple[str, ...] | None = key(
        None, "device type that plans assume, one for all devices or one each; default: this machine's"
    )
    device: Mapping[str, DeviceSpec] = table(dict, "device types of your own, by the names that device_type gives them")
    memory: str | tuple[str, ...] | None = key(
        None,
        'memory limit of a device, as in "40GiB", one for all or one each, at most what it has; default: what it has',
        SIZE,
        Each(SIZE),
    )
    link_latency: float | None = key(
        None, "latency between devices, for plans; default: the device type's (seconds)", AtLeast(0)
    )
    link_bandwidth: float | None = key(
        None, "bandwidth between devices, for plans; default: the device type's (bytes a second)", GreaterThan(0)
    )


@frozen(kw_only=True)
class RunSpec:
    """Length, seed, processes and directory of a run."""

    epochs: int = key(1, "passes over the training data", AtLeast(1))
    seed: int = key(0, "seed of every random number", AtLeast(0))
    threads: int = key(1, "CPU threads of a stage executor; the last bits of results depend on it", AtLeast(1))
    evaluate_every: int = key(1, "evaluate after every n-th epoch and the last (epochs)", AtLeast(1))
    log_every: int = key(50, "record the training loss every n micro-batches", AtLeast(1))
    micro_batches: int | None = key(
        None,
        "most micro-batches of an epoch, the first of its order; default: all; of a stream of samples, their number, which it needs",
        AtLeast(1),
    )
    evaluation_batches: int | None = key(
        None,
        "most batches of an evaluation, of samples that are spread over the data, the same in all runs; default: all",
        AtLeast(1),
    )
    overfit: bool = key(
        False, "every epoch has the micro-batches of the first one, and an evaluation reads their samples"
    )
    compile: bool = key(
        False,
        "compile what blocks compute in training, by torch.compile; takes up to minutes before the training, and changes the last bits of "
        "results",
    )
    record: Literal["off", "calls", "graphs"] = key(
        "off",
        'record the passes of segments, and replay them, with the same bits: "calls", as flat lists of torch\'s operations, on any device; '
        '"graphs", as CUDA graphs, whose memory a plan does not count. What cannot be recorded is named once',
    )
    directory: str = key(
        "runs",
        "parent of the run directories; relative to the working directory, wherever the specification lies",
        Length(at_least=1),
    )
    watchdog: float = key(
        300.0,
        "longest time of one operation of a stage, after which a run of several processes fails (seconds)",
        GreaterThan(0),
    )
    transport: Transport = key(
        "auto",
        'channels between processes: "auto" uses shared memory within a machine; "process-group" uses torch.distributed only; '
        '"nccl" sends from GPU to GPU, and on CPUs gloo takes its place',
    )
    scheduling: Scheduling = key(
        "auto",
        'policy of the scheduler: "arrival" begins an operation when its messages have arrived, "static" follows the '
        'plan\'s fixed order; "auto" is static on CUDA; no result depends on it',
    )


@frozen(kw_only=True)
class InitSpec:
    """Parameters and running statistics at the start."""

    weights: str | None = key(
        None, "a run, or a `state_dict` (safetensors or torch.save), to begin with; default: random, from the seed"
    )
    strict: bool = key(True, "refuse a file in which anything is missing, or of another shape, or too much")
    leave_out: tuple[str, ...] = key(
        (),
        'nodes and tensors of the network, or of the file, that stay out, by name or pattern: "head", "*/alpha"',
        Each(Length(at_least=1)),
    )
    freeze: tuple[str, ...] = key(
        (),
        'nodes and parameters that are not trained, by name or pattern: "stem", "layer*", "*.bias"',
        Each(Length(at_least=1)),
    )


_INTERVAL = re.compile(r"(\d+(?:\.\d+)?) ?(epochs?|updates?|s|min|h)")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_FORM = (
    'must be a whole number of epochs or updates, or a time in s, min or h, as in "1 epoch", "500 updates", "10 min"'
)


@frozen
class Interval:
    """A number of a unit."""

    count: float
    """Above 0; a whole number, except of seconds."""
    unit: Unit


def interval(text: str) -> Interval:
    """Read an interval.

    Raises:
        ValueError: the text is not an interval.
    """
    match = _INTERVAL.fullmatch(text.strip())
    number, unit = (float(match[1]), match[2]) if match else (0.0, "")
    if number <= 0 or (unit not in _SECONDS and not number.is_integer()):
        raise ValueError(f"{_FORM} (got {shown(text)})")
    if unit in _SECONDS:
        return Interval(number * _SECONDS[unit], "seconds")
    return Interval(number, "epochs" if unit.startswith("epoch") else "updates")


def _no_interval(value: Any) -> str:
    try:
        interval(value or "1 epoch")
    except ValueError:
        return _FORM
    return ""


@frozen(kw_only=True)
class CheckpointSpec:
    """Checkpoints of a run, from which it continues as if nothing had happened; one is always written at an interruption."""

    every: str | None = key(
        None,
        'interval between checkpoints, as in "1 epoch", "500 updates" or "10 min"; default: only at an interruption',
        rule('as "1 epoch", "500 updates", "10 min"', _no_interval),
    )
    keep: int = key(3, "latest checkpoints to keep", AtLeast(1), AtMost(1000))
    best: str | None = key(
        None,
        'metric of the evaluations, as in "validation/top1" or, without `data.validation`, "test/top1", whose best checkpoint is kept in '
        "addition to the latest ones",
    )
    best_is: Literal["largest", "smallest"] | None = key(
        None,
        "which value of the metric is best; default: the smallest loss, of a listed metric what it declares, "
        "the largest of any other",
    )
    signal: Literal["SIGUSR1", "SIGUSR2"] | None = key(
        None, "a further signal at which the run writes a checkpoint and stops, as batch systems send one beforehand"
    )

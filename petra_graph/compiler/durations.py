"""Durations of nodes and stages, from a profile of the real device or from its data sheet.

The operations of a segment for a micro-batch follow from what it keeps (see `executor.reconstruct_recompute_stash`):

    keeps     parameters   forward   backward
    nothing   current      forward   reverse           4 units where a forward is 1 and a backward 2
    nothing   stored       forward   invert, recompute 5
    input     either       forward   recompute         4
    graph     either       record    replay            3
    (head)                 forward_backward            3

An update takes, beside its step, the copy of the parameters where backwards use older ones, or the weights that the optimizer makes
for a delay, once: a profile has these in the forward or backward that uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Literal, get_args

from petra_graph.compiler.simulator.pipeline import StageSeconds
from petra_graph.program.device_types import EFFICIENCY, DeviceType
from petra_graph.program.node_costs import CostTable, Operation, Profile
from petra_graph.program.stage_program import Segment, StageProgram
from petra_graph.spec.model import Products

Pass = Literal["forward", "backward"]
OperationSeconds = Callable[[str, Operation], float]
"""Seconds of an operation of a node, by its name, for one micro-batch."""


def forward_operations(segment: Segment) -> tuple[Operation, ...]:
    """Return the operations of a segment's nodes in the forward."""
    if segment.kind == "head":
        return ("forward_backward",)
    return ("record",) if segment.keeps == "graph" else ("forward",)


def backward_operations(segment: Segment, *, delayed: bool) -> tuple[Operation, ...]:
    """Return the operations of a segment's nodes in the backward.

    Args:
        delayed: parameters may have changed since the forward; otherwise none are stored.
    """
    if segment.kind == "head":
        return ()
    match segment.keeps:
        case "graph":
            return ("replay",)
        case "input":
            return ("recompute",)
        case "nothing":
            return ("invert", "recompute") if segment.backward == "stored" and delayed else ("reverse",)


def estimated(costs: CostTable, device: DeviceType, products: Products) -> OperationSeconds:
    """Return the operations' seconds on a device of which only the data sheet is known.

    An operation takes as long as its arithmetic or its memory traffic, whichever is longer, at `EFFICIENCY` of the
    rates (the roofline of Williams et al. 2009, https://doi.org/10.1145/1498765.1498785), and its kernels have to be
    launched. A CPU launches and computes in turn, so the seconds add up. The host of a GPU launches ahead while the GPU
    computes, so the longer of the two counts: small tensors leave a GPU waiting for its host. An update was counted tensor
    by tensor; on a GPU torch's optimizers step all of a node's tensors with one kernel each operation.
    """
    rate = EFFICIENCY * device.flops_per_second(products)
    bandwidth = EFFICIENCY * device.memory_bandwidth

    def timed(flops: int, traffic: int, kernels: int) -> float:
        computing, launching = max(flops / rate, traffic / bandwidth), kernels * device.launch_seconds
        return max(computing, launching) if device.kind == "cuda" else computing + launching

    def seconds(node: str, operation: Operation) -> float:
        cost = costs.nodes[node]
        if operation == "copy":
            return timed(0, 2 * cost.parameter_bytes, cost.parameter_tensors)
        work = cost.work.get(operation)
        if work is None:
            return 0.0
        kernels = work.kernels
        if operation == "update" and device.kind == "cuda":
            kernels = ceil(kernels / max(1, cost.parameter_tensors))
        return timed(work.flops, work.traffic_bytes, kernels)

    return seconds


def profiled(profile: Profile, factor: float) -> OperationSeconds:
    """Return the operations' seconds on a device that was timed, or on one that takes `factor` times as long."""

    def seconds(node: str, operation: Operation) -> float:
        return factor * profile.nodes[node].get(operation, 0.0)

    return seconds


def stage_seconds(program: StageProgram, clock: OperationSeconds) -> StageSeconds:
    """Return the seconds of a stage's operations; `clock` is that of its device."""
    nodes = [node_seconds(program, segment, name, clock) for segment in program.segments for name in segment.nodes]
    return StageSeconds(
        forward=sum(node.forward for node in nodes),
        backward=sum(node.backward for node in nodes),
        update=sum(node.update for node in nodes),
    )


def node_seconds(program: StageProgram, segment: Segment, name: str, clock: OperationSeconds) -> StageSeconds:
    """Return the seconds of the operations of one of a stage's nodes.

    Args:
        program: of the stage.
        segment: that of the node.
        name: of the node.
        clock: of the stage's device.
    """
    copies = segment.kind != "head" and segment.backward == "stored" and program.delayed  # Before an update.
    beside: tuple[Operation, ...] = ("copy",) if copies else ("predict", "estimate") if program.delayed else ()
    forward = sum(clock(name, operation) for operation in forward_operations(segment))
    backward = sum(clock(name, operation) for operation in backward_operations(segment, delayed=program.delayed))
    return StageSeconds(
        forward=forward,
        backward=backward,
        update=clock(name, "update") + sum(clock(name, operation) for operation in beside),
    )


def flops(program: StageProgram, costs: CostTable) -> dict[Pass, int]:
    """Return the floating-point operations of a stage's forward and of its backward."""
    nodes = [node_flops(program, segment, name, costs) for segment in program.segments for name in segment.nodes]
    return {one: sum(node[one] for node in nodes) for one in get_args(Pass)}


def node_flops(program: StageProgram, segment: Segment, name: str, costs: CostTable) -> dict[Pass, int]:
    """Return those of one of its nodes."""
    work = costs.nodes[name].work
    backward = backward_operations(segment, delayed=program.delayed)
    return {
        "forward": sum(work[operation].flops for operation in forward_operations(segment)),
        "backward": sum(work[operation].flops for operation in backward),
    }

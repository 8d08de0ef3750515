"""Durations of nodes and stages, from a profile of the real device or from its data sheet.

The operations of a segment for a micro-batch follow from what it keeps (see `executor.runners`):

    keeps     parameters   forward   backward
    nothing   current      forward   reverse           4 units where a forward is 1 and a backward 2
    nothing   stored       forward   invert, recompute 5
    input     either       forward   recompute         4
    graph     either       record    replay            3
    (head)                 forward_backward            3

A GPU works beside its host, which queues operations for it: each takes the larger of their seconds. A stage's optimizer steps all of its
parameters with one set of operations, however many nodes it has, so the host's seconds of an update are the stage's.

An update takes, beside its step, the copy of the parameters where backwards use older ones, or the weights that the optimizer makes
for a delay, once: a profile has these in the forward or backward that uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from statistics import fmean
from typing import get_args

from attrs import frozen

from petra_graph.compiler.simulation import BothWays, StageSeconds
from petra_graph.program.channels import Direction
from petra_graph.program.device_types import EFFICIENCY, DeviceType
from petra_graph.program.node_costs import CostTable, Operation, Profile, Work
from petra_graph.program.schedule import Verb
from petra_graph.program.stage_program import Segment, StageProgram
from petra_graph.spec.model import Keeps, Products

OperationSeconds = Callable[[str, Operation], float]
"""Seconds of an operation of a node, by its name, for one micro-batch."""
_NOTHING = Work()
_FOR_DELAY: tuple[Operation, ...] = ("predict", "estimate")
"""What an optimizer may make once an update for late passes."""


@frozen
class HostAndDevice:
    """A clock of operations that a host queues for a GPU, which works meanwhile: each takes the larger of their seconds."""

    host: OperationSeconds
    """Of an operation of a node; of an update nothing."""
    device: OperationSeconds
    host_update: float
    """Of a stage's host, for an update."""

    def __call__(self, node: str, operation: Operation) -> float:
        return max(self.host(node, operation), self.device(node, operation))


def operations(segment: Segment, *, delayed: bool) -> Mapping[Verb, tuple[Operation, ...]]:
    """Return what each of a segment's nodes does in the passes of a micro-batch, and in an update.

    Args:
        delayed: parameters may have changed between a forward and its backward; otherwise none are stored.
    """
    if segment.kind == "head":
        return {"forward": ("forward_backward",), "backward": (), "update": ("update", *(_FOR_DELAY * delayed))}
    stored = segment.backward == "stored" and delayed
    nothing: tuple[Operation, ...] = ("invert", "recompute") if stored else ("reverse",)
    kept: Mapping[Keeps, tuple[Operation, ...]] = {"graph": ("replay",), "input": ("recompute",), "nothing": nothing}
    return {
        "forward": ("record",) if segment.keeps == "graph" else ("forward",),
        "backward": kept[segment.keeps],
        "update": ("update", "copy") if stored else ("update", *(_FOR_DELAY * delayed)),
    }


def estimated(costs: CostTable, device: DeviceType, products: Products) -> OperationSeconds:
    """Return the operations' seconds on a device of which only the data sheet is known.

    An operation takes as long as its arithmetic or its memory traffic, whichever is longer, at `EFFICIENCY` of the
    rates (the roofline of Williams et al. 2009, https://doi.org/10.1145/1498765.1498785), and the host has to dispatch it. A CPU
    dispatches and computes in turn, so the seconds add up. The host of a GPU is ahead of it or behind it. An update was counted tensor
    by tensor; on a GPU torch's optimizers step all of a stage's tensors at once.
    """
    rate = EFFICIENCY * device.flops_per_second(products)
    bandwidth = EFFICIENCY * device.memory_bandwidth

    def work_of(node: str, operation: Operation) -> Work:
        cost = costs.nodes[node]
        if operation == "copy":
            return Work(traffic_bytes=2 * cost.parameter_bytes, kernels=cost.parameter_tensors)
        return cost.work.get(operation) or _NOTHING

    def computing(node: str, operation: Operation) -> float:
        work = work_of(node, operation)
        return max(work.flops / rate, work.traffic_bytes / bandwidth)

    def dispatching(node: str, operation: Operation) -> float:
        return work_of(node, operation).kernels * device.host_seconds

    if device.kind == "cpu":
        return lambda *at: computing(*at) + dispatching(*at)
    steps = [
        ceil(cost.work["update"].kernels / max(1, cost.parameter_tensors))
        for cost in costs.nodes.values()
        if "update" in cost.work
    ]
    return HostAndDevice(
        lambda node, operation: 0.0 if operation == "update" else dispatching(node, operation),
        computing,
        max(steps, default=0) * device.host_seconds,
    )


def profiled(profile: Profile, factor: float) -> OperationSeconds:
    """Return the operations' seconds on a device that was timed, or on one that takes `factor` times as long.

    A host takes the same beside any GPU; for an update, the mean over the stages that were timed.
    """

    def device(node: str, operation: Operation) -> float:
        return factor * profile.nodes[node].get(operation, 0.0)

    if profile.kind == "cpu":
        return device
    return HostAndDevice(
        lambda node, operation: 0.0 if operation == "update" else profile.host[node].get(operation, 0.0),
        device,
        fmean(own["update"] for own in profile.host.values()),
    )


def stage_seconds(program: StageProgram, clock: OperationSeconds) -> StageSeconds:
    """Return the seconds of a stage's operations; `clock` is that of its device."""
    nodes = [node_seconds(program, segment, name, clock) for segment in program.segments for name in segment.nodes]
    return StageSeconds(
        forward=sum(node.forward for node in nodes),
        backward=sum(node.backward for node in nodes),
        update=sum(node.update for node in nodes) + (clock.host_update if isinstance(clock, HostAndDevice) else 0.0),
    )


def ahead(programs: Sequence[StageProgram], clock: OperationSeconds, outside: float) -> float:
    """Return the share of their stages' seconds that one device takes which does everything.

    Its host waits for no message, so it runs ahead: not the larger of the two counts for each operation, but the larger of their
    sums over a micro-batch.

    Args:
        outside: the host's seconds of a micro-batch for its samples.
    """
    if not isinstance(clock, HostAndDevice):
        return 1.0
    k = programs[0].accumulation
    host, device, larger = (
        sum(stage_seconds(program, one).per_micro_batch(k) for program in programs)
        for one in (clock.host, clock.device, clock)
    )
    host += outside + len(programs) * clock.host_update / k
    larger += outside
    return max(host, device) / larger if larger else 1.0


def node_seconds(program: StageProgram, segment: Segment, name: str, clock: OperationSeconds) -> StageSeconds:
    """Return the seconds of the operations of one node of a stage's segment; `clock` is that of its device."""
    done = operations(segment, delayed=program.delayed)
    return StageSeconds(**{verb: sum((clock(name, operation) for operation in own), 0.0) for verb, own in done.items()})


def node_flops(program: StageProgram, segment: Segment, name: str, costs: CostTable) -> BothWays:
    """Return the floating-point operations of a node's forward and of its backward."""
    done, work = operations(segment, delayed=program.delayed), costs.nodes[name].work
    forward, backward = (sum(work[operation].flops for operation in done[one]) for one in get_args(Direction))
    return BothWays(forward=forward, backward=backward)

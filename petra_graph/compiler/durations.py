"""Durations of nodes and stages, from a profile of the real device or from its data sheet.

The operations of a segment for a micro-batch follow from what it keeps (see `executor.reconstruct_recompute_stash`):

    keeps     parameters   forward   backward
    nothing   current      forward   reverse           4 units where a forward is 1 and a backward 2
    nothing   stored       forward   invert, recompute 5
    input     either       forward   recompute         4
    graph     either       record    replay            3
    (head)                 forward_backward            3
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from attrs import evolve

from petra_graph.compiler.simulator.pipeline import DIRECTIONS, StageSeconds
from petra_graph.errors import Problem, SpecError, shown
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.program.channels import Direction
from petra_graph.program.costs import OPERATIONS, CostTable, Operation, Profile
from petra_graph.program.devices import EFFICIENCY, DeviceType
from petra_graph.program.stage_program import Segment, StageProgram
from petra_graph.record.profile import read_profile
from petra_graph.spec.model import Spec

OperationSeconds = Callable[[str, Operation], float]
"""Seconds of an operation of a node, by its name, for one micro-batch."""
_PATH = ("partition", "profile")
_HINT = "take one of this specification, on such a device: petra-graph profile SPEC"


def forward_operations(segment: Segment) -> tuple[Operation, ...]:
    """Return the operations of a segment's nodes in the forward."""
    if segment.kind == "head":
        return ("forward_backward",)
    return ("record",) if segment.keeps == "graph" else ("forward",)


def backward_operations(segment: Segment, *, delayed: bool) -> tuple[Operation, ...]:
    """Return the operations of a segment's nodes in the backward.

    Args:
        segment: the nodes.
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


def estimated(costs: CostTable, device: DeviceType, compute: str) -> OperationSeconds:
    """Return the operations' seconds on a device of which only the data sheet is known.

    An operation takes as long as its arithmetic or its memory traffic, whichever is longer, at `EFFICIENCY` of the
    rates (the roofline of Williams et al. 2009, https://doi.org/10.1145/1498765.1498785).
    """
    rate = EFFICIENCY * device.flops_per_second(compute)
    bandwidth = EFFICIENCY * device.memory_bandwidth

    def seconds(node: str, operation: Operation) -> float:
        if operation == "copy":
            return 2 * costs.nodes[node].parameter_bytes / bandwidth
        work = costs.nodes[node].work.get(operation)
        return 0.0 if work is None else max(work.flops / rate, work.traffic_bytes / bandwidth)

    return seconds


def profiled(profile: Profile, factor: float) -> OperationSeconds:
    """Return the operations' seconds on a device that was timed, or on one that takes `factor` times as long."""

    def seconds(node: str, operation: Operation) -> float:
        return factor * profile.nodes[node].get(operation, 0.0)

    return seconds


def stage_seconds(program: StageProgram, clock: OperationSeconds) -> StageSeconds:
    """Return the seconds of a stage's operations."""
    nodes = [node_seconds(program, segment, name, clock) for segment in program.segments for name in segment.nodes]
    return StageSeconds(
        forward=sum(node.forward for node in nodes),
        backward=sum(node.backward for node in nodes),
        update=sum(node.update for node in nodes),
    )


def node_seconds(program: StageProgram, segment: Segment, name: str, clock: OperationSeconds) -> StageSeconds:
    """Return the seconds of the operations of one of its nodes."""
    copies = segment.kind != "head" and segment.backward == "stored" and _delayed(program)  # Before an update.
    return StageSeconds(
        forward=sum(clock(name, operation) for operation in forward_operations(segment)),
        backward=sum(clock(name, operation) for operation in backward_operations(segment, delayed=_delayed(program))),
        update=clock(name, "update") + (clock(name, "copy") if copies else 0.0),
    )


def flops(program: StageProgram, costs: CostTable) -> dict[Direction, int]:
    """Return the floating-point operations of a stage's forward and of its backward."""
    nodes = [node_flops(program, segment, name, costs) for segment in program.segments for name in segment.nodes]
    return {direction: sum(node[direction] for node in nodes) for direction in DIRECTIONS}


def node_flops(program: StageProgram, segment: Segment, name: str, costs: CostTable) -> dict[Direction, int]:
    """Return those of one of its nodes."""
    work = costs.nodes[name].work
    backward = backward_operations(segment, delayed=_delayed(program))
    return {
        "forward": sum(work[operation].flops for operation in forward_operations(segment)),
        "backward": sum(work[operation].flops for operation in backward),
    }


def _delayed(program: StageProgram) -> bool:
    """Whether parameters may change between a micro-batch's forward and its backward."""
    return program.depth > 1 and program.flush == "drain"


def checked_profile(spec: Spec, graph: NodeGraph, costs: CostTable, device_kind: str) -> Profile | None:
    """Read the profile; None where the specification names none.

    Args:
        spec: the specification.
        graph: its network.
        costs: the costs of every node.
        device_kind: kind of the first device, "cpu" or "cuda".

    Raises:
        SpecError: the profile cannot be read, or is of another network, micro-batch, precision or kind of device.
    """
    if spec.partition.profile is None:
        return None
    try:
        profile = read_profile(Path(spec.partition.profile))
    except SpecError as error:
        raise SpecError([evolve(problem, path=_PATH) for problem in error.problems]) from None
    problems = [*_other_conditions(profile, spec, device_kind), *_other_network(profile, graph, costs)]
    if problems:
        raise SpecError(problems)
    return profile


def _other_conditions(profile: Profile, spec: Spec, device_kind: str) -> Iterator[Problem]:
    for condition, profiled, planned in (
        ("micro-batches of", profile.micro_batch, spec.data.batch),
        ("precision.compute =", profile.compute, spec.precision.compute),
        ("run.threads =", profile.threads, spec.run.threads),
        ("a device of kind", profile.kind, device_kind),
    ):
        if profiled != planned:
            message = f"the profile is of {condition} {shown(profiled)}, not {shown(planned)}"
            yield Problem(message=message, hint=_HINT, path=_PATH)


def _other_network(profile: Profile, graph: NodeGraph, costs: CostTable) -> Iterator[Problem]:
    """Yield the first node that the profile lacks or has otherwise."""
    for name, node in graph.nodes.items():
        cost = costs.nodes[name]
        operations = profile.nodes.get(name)
        if operations is None:
            message = f"the profile has no node {shown(name)}"
        elif profile.sizes.get(name) != (cost.parameters, sum(cost.output_bytes)):
            message = f"the profile's node {shown(name)} has other sizes than the network's"
        elif missing := OPERATIONS[node.kind] - operations.keys():
            message = f"the profile has not timed {', '.join(sorted(missing))} of node {shown(name)}"
        else:
            continue
        yield Problem(message=message, hint=_HINT, path=_PATH)
        return

"""The choices of a specification, checked against each other: method, schedule, depths, devices, processes."""

import re
from collections.abc import Iterable, Iterator, Mapping

from petra_graph.errors import Problem, SpecError, shown, shown_key, suggestion
from petra_graph.graph.node_graph import NodeGraph, stage_graph
from petra_graph.program.device_types import device_types
from petra_graph.program.method import METHODS, Method, is_synchronous
from petra_graph.program.stage_program import Partition
from petra_graph.spec.model import ClipSpec, MethodSpec, PartitionSpec, RequestedSchedule, Spec, interval
from petra_graph.units import plural


def _wrong(message: str, hint: str, *path: str | int) -> Problem:
    return Problem(message=message, hint=hint, path=path)


def refuse(problems: Iterable[Problem]) -> None:
    """Raise problems as SpecError, if there are any."""
    if found := list(problems):
        raise SpecError(found)


def check_method(spec: MethodSpec, clip: ClipSpec | None) -> tuple[Method, RequestedSchedule]:
    """Return the method and the schedule; SpecError: the method does not exist, or its keys contradict each other."""
    method = METHODS.get(spec.name)
    if method is None:
        raise SpecError(_wrong(f"unknown method {shown(spec.name)}", suggestion(spec.name, METHODS), "method", "name"))
    schedule = method.schedule if spec.schedule is None else spec.schedule
    problems, where = list[Problem](), ("method", "schedule")
    if isinstance(schedule, str) and schedule not in method.schedules:
        message = f'method "{method.name}" runs under {" or ".join(method.schedules)} (got {shown(schedule)})'
        problems.append(_wrong(message, f'leave out `schedule`, or set schedule = "{method.schedule}"', *where))
    elif isinstance(schedule, tuple) and method.flush == "drain" and "lockstep" not in method.schedules:
        message = f'method "{method.name}" has no delay, and a list of depths would give it one'
        problems.append(_wrong(message, "leave out `schedule`, or choose a method with delay", *where))
    if clip is not None and clip.scope == "global":
        # Asynchronous stages update at different times, so no global norm exists when one steps.
        clipped, hint = ("optimizer", "clip", "scope"), 'set scope = "stage"'
        if clip.by == "value":
            message = 'scope = "global" means one norm over all stages, and by = "value" clips no norm'
            problems.append(_wrong(message, hint, *clipped))
        elif not is_synchronous(schedule, method.flush):
            message = f'scope = "global" needs a synchronous schedule (got {shown(schedule)})'
            problems.append(_wrong(message, hint, *clipped))
    refuse(problems)
    return method, schedule


def old_graph_problems(spec: Spec, method: Method) -> Iterator[Problem]:
    """Yield why graphs of old forwards cannot be differentiated with the current parameters, where the method does that."""
    if not method.differentiates_old_graphs:
        return
    name, current = shown(method.name), "differentiates kept graphs with current parameters, and"
    if (every := spec.checkpoint.every) is not None and interval(every).unit != "epochs":
        message = (
            f"method {name} has checkpoints at the ends of epochs alone, where no graph waits (got {shown(every)})"
        )
        yield _wrong(message, 'count epochs: "1 epoch"', "checkpoint", "every")
    if spec.precision.compute == "bfloat16":
        message = f"method {name} {current} autocast keeps copies of older ones"
        yield _wrong(message, 'set it to "float32"', "precision", "compute")
    if spec.run.compile:
        yield _wrong(f"method {name} {current} compiled ones may keep older ones", "leave it out", "run", "compile")


def check_depths(schedule: RequestedSchedule, graph: NodeGraph, partition: Partition) -> None:
    """Check a list of depths; SpecError: it has another length than the stages, does not end with 1, or a stage would wait for ever for one that runs fewer forwards ahead."""
    if not isinstance(schedule, tuple):
        return
    stages, path, problems = partition.stages, ("method", "schedule"), list[Problem]()
    hint = f"1f1b has {[stage.distance + 1 for stage in stages]} here"
    if len(schedule) != len(stages):
        raise SpecError(_wrong(f"{plural(len(schedule), 'depth')} for {plural(len(stages), 'stage')}", hint, *path))
    for feeder, reader in sorted(stage_graph(graph.digraph, [stage.nodes for stage in stages]).edges):
        if (own := schedule[reader - 1]) > (before := schedule[feeder - 1]):
            message = f"stage {reader} would wait for ever: its depth is {own}, and stage {feeder}, which feeds it, has {before}"
            problems.append(_wrong(message, f"depths must not grow along an edge; {hint}", *path))
    if schedule[-1] != 1:
        message = f"the last stage differentiates at once, so its depth is 1 (got {schedule[-1]})"
        problems.append(_wrong(message, hint, *path))
    refuse(problems)


def keep_problems(spec: MethodSpec, graph: NodeGraph) -> Iterator[Problem]:
    """Yield the problems of a list of what nodes keep."""
    listed, choices = spec.keep if isinstance(spec.keep, Mapping) else {}, set(graph.nodes) - {graph.head}
    for name, keeps in listed.items():
        path, node = ("method", "keep", name), graph.nodes.get(name)
        if node is None or node.kind == "head":
            yield _wrong(f"{shown(name)} is not a node that keeps anything", suggestion(name, choices), *path)
        elif node.kind == "buffered" and keeps == "nothing":
            message = f"node {shown(name)} is buffered, so it cannot reconstruct its input, and keep nothing"
            yield _wrong(message, 'set it to "input" or "graph"', *path)


def device_count(partition: PartitionSpec) -> int:
    return partition.devices if isinstance(partition.devices, int) else len(set(partition.devices))


def device_problems(partition: PartitionSpec) -> Iterator[Problem]:
    """Yield the problems of devices' names, types and memory limits, present or not."""
    devices, count = partition.devices, device_count(partition)
    for index, name in enumerate(devices if isinstance(devices, tuple) else ()):
        if not re.fullmatch(r"(cpu|cuda)(:\d+)?", name):
            hint = 'allowed: "cpu", and "cuda:0", "cuda:1", ...'
            yield _wrong(f"{shown(name)} is not a device", hint, "partition", "devices", index)
    for key, given in (("device_type", partition.device_type), ("memory", partition.memory)):
        if isinstance(given, tuple) and len(given) != count:
            message = f"{key} lists {plural(len(given), 'value')} for {plural(count, 'device')}"
            yield _wrong(message, "give one value for all, or one a device", "partition", key)
    types, known = partition.device_type or (), device_types(partition)
    for name in dict.fromkeys((types,) if isinstance(types, str) else types):
        if name not in known:
            hint = f"{suggestion(name, known)}; [partition.device.{shown_key(name)}] states one of your own"
            yield _wrong(f"unknown device type {shown(name)}", hint, "partition", "device_type")


def replica_problems(spec: Spec, processes: int) -> Iterator[Problem]:
    """Yield the problems of replicas that cannot have processes of their own, or cannot step on their own."""
    replicas, clip = spec.partition.replicas, spec.optimizer.clip
    if processes % replicas:
        message = f"{replicas} replicas need a multiple of {replicas} processes (got {processes})"
        yield _wrong(message, "start that many with --processes or torchrun", "partition", "replicas")
    if replicas > 1 and clip is not None and clip.scope == "global":
        message, hint = "one norm over all stages is not taken over replicas", 'set scope = "stage", or replicas = 1'
        yield _wrong(message, hint, "optimizer", "clip", "scope")

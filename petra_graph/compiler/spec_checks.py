"""The choices of a specification, checked against each other: method, schedule, number formats, processes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import attrs
import networkx as nx

from petra_graph.errors import Problem, SpecError, shown, shown_key, suggestion
from petra_graph.graph.node_graph import NodeGraph, growing_edges, stage_graph
from petra_graph.program.device_types import DEVICE_TYPES, device_types
from petra_graph.program.method import METHODS, Method, is_synchronous
from petra_graph.program.placement import Partition
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import ClipSpec, MethodSpec, RequestedSchedule, Spec
from petra_graph.spec.partition import PartitionSpec
from petra_graph.spec.run_tables import interval
from petra_graph.units import noun, plural

_DATA_PARALLEL = {"ddp", "dp", "fsdp", "data-parallel"}


def check_method(spec: MethodSpec, clip: ClipSpec | None) -> tuple[Method, RequestedSchedule]:
    """Return the method, with the keys that the specification overrides, and the schedule.

    Raises:
        SpecError: the method does not exist, or its keys contradict each other. Paths begin at the specification's root.
    """
    method = METHODS.get(spec.name)
    if method is None:
        message = f"unknown method {shown(spec.name)}"
        replicas = f"partition.replicas trains copies of the pipeline on shares of a batch; methods: {', '.join(sorted(METHODS))}"
        hint = replicas if spec.name in _DATA_PARALLEL else suggestion(spec.name, METHODS)
        raise SpecError(Problem(message=message, hint=hint, path=("method", "name")))
    schedule = method.schedules[0] if spec.schedule is None else spec.schedule
    overrides = {
        key: value
        for key in ("reversible", "buffered", "backward", "flush")
        if (value := getattr(spec, key)) is not None
    }
    method = attrs.evolve(method, **overrides)
    problems = [
        *_contradictions(method, schedule),
        *_keep_contradictions(spec),
        *_clip_problems(method, schedule, clip),
    ]
    if problems:
        raise SpecError(problems)
    return method, schedule


def check_depths(schedule: RequestedSchedule, graph: NodeGraph, partition: Partition) -> None:
    """Check a list of depths against the stages.

    A stage that runs fewer forwards ahead than a stage that it feeds would leave that stage waiting for ever.

    Raises:
        SpecError: the number of depths is not that of the stages, the last depth is not 1, or depths grow along an edge.
    """
    if not isinstance(schedule, tuple):
        return
    stages = partition.stages
    edges = stage_graph(graph.digraph, [stage.nodes for stage in stages])
    hint = f"1f1b has {[stage.distance + 1 for stage in stages]} here"
    if problems := list(_depth_problems(schedule, len(stages), edges, hint)):
        raise SpecError(problems)


def keep_problems(spec: MethodSpec, graph: NodeGraph) -> Iterator[Problem]:
    """Yield the problems of a list of what nodes keep."""
    listed, choices = spec.keep if isinstance(spec.keep, Mapping) else {}, set(graph.nodes) - {graph.head}
    for name, keeps in listed.items():
        path, node = ("method", "keep", name), graph.nodes.get(name)
        if node is None:
            message = f"{shown(name)} is not a node"
            yield Problem(message=message, hint=suggestion(name, choices), path=path, at_key=True)
        elif node.kind == "head":
            message = f"node {shown(name)} is the head, which differentiates at once and keeps nothing"
            yield Problem(message=message, hint="leave it out", path=path, at_key=True)
        elif node.kind == "buffered" and keeps == "nothing":
            message = f"node {shown(name)} is buffered, so it cannot reconstruct its input, and keep nothing"
            yield Problem(message=message, hint='set it to "input" or "graph"', path=path)


def check_kept(listed: object, programs: Sequence[StageProgram]) -> None:
    """Check that the nodes that are listed with a graph may keep it in their stages.

    Raises:
        SpecError: parameters change before a backward, and are not stored.
    """
    problems = [
        Problem(
            message=f"node {shown(name)} cannot keep its graph: its stage, {program.index}, has depth {program.depth}, so its parameters "
            "change before the backward",
            hint='set it to "input", or set method.allow_stored = true, which stores the parameters of the forward as well',
            path=("method", "keep", name),
        )
        for program in programs
        for segment in program.segments
        for name in segment.nodes
        if isinstance(listed, Mapping) and listed.get(name) == "graph" != segment.keeps
    ]
    if problems:
        raise SpecError(problems)


def check_number_of_stages(stages: int, schedule: RequestedSchedule, graph: NodeGraph) -> None:
    """Check a number of stages, and a list of depths against it, before the network is cut.

    Where every node reads the one before it, stages do so too; otherwise the edges between stages depend on the cut.

    Raises:
        SpecError: there are fewer nodes than stages, or the depths fit no cut.
    """
    nodes = len(graph.order)
    if stages > nodes:
        message = f"{stages} stages for {plural(nodes, 'node')}: each stage needs at least one"
        raise SpecError(Problem(message=message, hint=f"set it to {nodes} or less", path=("partition", "stages")))
    if isinstance(schedule, tuple):
        chained = all(graph.digraph.has_edge(*pair) for pair in pairwise(graph.order))
        edges = nx.path_graph(range(1, (stages if chained else 0) + 1), create_using=nx.DiGraph)
        hint = f"1f1b has {[*range(stages, 0, -1)]} in a chain"
        if problems := list(_depth_problems(schedule, stages, edges, hint)):
            raise SpecError(problems)


def _depth_problems(depths: tuple[int, ...], stages: int, edges: nx.DiGraph, hint: str) -> Iterator[Problem]:
    """Yield the problems of a list of depths; `edges` are those between stages, as far as they are known."""
    path = ("method", "schedule")
    if len(depths) != stages:
        yield Problem(message=f"{plural(len(depths), 'depth')} for {plural(stages, 'stage')}", hint=hint, path=path)
        return
    for feeder, reader in growing_edges(edges, dict(enumerate(depths, start=1))):
        yield Problem(
            message=f"stage {reader} would wait for ever: its depth is {depths[reader - 1]}, "
            f"and stage {feeder}, which feeds it, has {depths[feeder - 1]}",
            hint=f"depths must not grow along an edge; {hint}",
            path=path,
        )
    if depths[-1] != 1:
        message = f"the last stage differentiates at once, so its depth is 1 (got {depths[-1]})"
        yield Problem(message=message, hint=hint, path=path)


def device_count(partition: PartitionSpec) -> int:
    return partition.devices if isinstance(partition.devices, int) else len(set(partition.devices))


def device_problems(partition: PartitionSpec) -> Iterator[Problem]:
    """Yield the problems of devices' names, types and memory limits, present or not."""
    devices, count = partition.devices, device_count(partition)
    for index, name in enumerate(devices if isinstance(devices, tuple) else ()):
        if not re.fullmatch(r"(cpu|cuda)(:\d+)?", name):
            message, hint = f"{shown(name)} is not a device", 'allowed: "cpu", and "cuda:0", "cuda:1", ...'
            yield Problem(message=message, hint=hint, path=("partition", "devices", index))
    for key, given in (("device_type", partition.device_type), ("memory", partition.memory)):
        if isinstance(given, tuple) and len(given) != count:
            yield Problem(
                message=f"{key} lists {plural(len(given), 'value')} for {plural(count, 'device')}",
                hint="give one value for all, or one a device",
                path=("partition", key),
            )
    for name in partition.device:
        if name in DEVICE_TYPES:
            message = f"{shown(name)} is a device type already, with the figures of its data sheet"
            hint = f"give yours another name, such as {shown_key(f'my-{name}')}, and name that in device_type"
            yield Problem(message=message, hint=hint, path=("partition", "device", name), at_key=True)
    types, known = partition.device_type or (), device_types(partition)
    for name in dict.fromkeys((types,) if isinstance(types, str) else types):
        if name not in known:
            message = f"unknown device type {shown(name)}"
            hint = f"{suggestion(name, known)}; [partition.device.{shown_key(name)}] states one of your own"
            yield Problem(message=message, hint=hint, path=("partition", "device_type"))


def _contradictions(method: Method, schedule: RequestedSchedule) -> Iterator[Problem]:
    """Yield the problem of the schedule, or where the schedule is right, those of what nodes keep under it."""
    wrong = _schedule_problem(method, schedule)
    if wrong is not None:
        yield wrong
        return
    synchronous = is_synchronous(schedule, method.flush)
    for kind in ("reversible", "buffered"):
        if getattr(method, kind) == "graph" and method.backward == "current" and not synchronous:
            yield Problem(
                message=f'{kind} = "graph" keeps the forward\'s parameters in its graph, but backward = "current" '
                "asks for newer ones",
                hint=f'set backward = "stored", or {kind} = "input" to run again with the current parameters',
                path=("method", kind),
            )
    if method.backward == "stored" and method.flush == "window":
        yield Problem(
            message='backward = "stored" keeps parameters that do not change before the backward: the pipeline flushes',
            hint='leave out `backward`, or set flush = "drain"',
            path=("method", "backward"),
        )


def _schedule_problem(method: Method, schedule: RequestedSchedule) -> Problem | None:
    """Return the problem of the first rule that the schedule breaks."""
    rules = (
        (
            schedule == "fill-drain" and method.flush != "window",
            'schedule "fill-drain" empties the pipeline after each window of accumulation',
            'set flush = "window", or method.name = "gpipe"',
        ),
        (
            schedule == "auto" and method.flush == "window",
            'schedule "auto" finds least staleness, and where the pipeline flushes nothing is stale',
            "leave out `flush`, or choose a schedule by name",
        ),
        (
            isinstance(schedule, str) and schedule not in method.schedules,
            f'method "{method.name}" runs under {" or ".join(method.schedules)} (got {shown(schedule)})',
            f'leave out `schedule`, or set schedule = "{method.schedules[0]}"',
        ),
        (
            isinstance(schedule, tuple) and method.flush == "drain" and "lockstep" not in method.schedules,
            f'method "{method.name}" has no delay, and a list of depths would give it one',
            "leave out `schedule`, or choose petra, dsp, pipedream or delayed-reconstructed",
        ),
    )
    broken = ((message, hint) for breaks, message, hint in rules if breaks)
    return next((Problem(message=text, hint=hint, path=("method", "schedule")) for text, hint in broken), None)


def _keep_contradictions(spec: MethodSpec) -> Iterator[Problem]:
    """Yield the problems of `keep` beside other keys of the method."""
    path, given = ("method", "keep"), '"auto"' if spec.keep == "auto" else "a table"
    if spec.keep is not None and spec.last_stage == "keep-graph":
        message = f'keep = {given} says what nodes keep, and so does last_stage = "keep-graph"'
        yield Problem(message=message, hint="leave out one of them", path=path)
    if spec.keep is None and spec.allow_stored:
        message = "allow_stored = true changes nothing: it is about nodes that `keep` names or chooses"
        yield Problem(message=message, hint='leave it out, or set keep = "auto"', path=("method", "allow_stored"))


def _clip_problems(method: Method, schedule: RequestedSchedule, clip: ClipSpec | None) -> Iterator[Problem]:
    if clip is None or clip.scope != "global":
        return
    if clip.by == "value":
        yield Problem(
            message='scope = "global" means one norm over all stages, and by = "value" clips no norm',
            hint='leave out `scope`, or set by = "norm"',
            path=("optimizer", "clip", "scope"),
        )
    elif not is_synchronous(schedule, method.flush):
        yield Problem(
            message=f'scope = "global" needs a synchronous schedule (got {shown(schedule)})',
            hint="asynchronous stages update at different times, so no global norm exists when one steps; "
            'set scope = "stage", or method.schedule = "sequential"',
            path=("optimizer", "clip", "scope"),
        )


def check_processes(stages: int, processes: int) -> None:
    """Check that every process has a stage.

    Raises:
        SpecError: there are more processes than stages.
    """
    if processes > stages:
        raise SpecError(
            Problem(
                message=f"{processes} processes cannot share {stages} {noun(stages, 'stage')}",
                hint=f"start at most {stages}, or cut the network into more stages",
                path=("partition", "stages"),
            )
        )


def replica_problems(spec: Spec, processes: int) -> Iterator[Problem]:
    """Yield the problems of replicas that cannot have processes of their own, or cannot step on their own."""
    replicas, clip = spec.partition.replicas, spec.optimizer.clip
    if processes % replicas:
        message = f"{replicas} replicas need a multiple of {replicas} processes (got {processes})"
        hint = "start that many with --processes or torchrun"
        yield Problem(message=message, hint=hint, path=("partition", "replicas"))
    if replicas > 1 and clip is not None and clip.scope == "global":
        message, hint = "one norm over all stages is not taken over replicas", 'set scope = "stage", or replicas = 1'
        yield Problem(message=message, hint=hint, path=("optimizer", "clip", "scope"))
    if replicas > 1 and spec.checkpoint.every is not None and interval(spec.checkpoint.every).unit == "seconds":
        message = "replicas agree on a checkpoint beforehand, and a time is reached at another micro-batch in each"
        yield Problem(message=message, hint='count epochs or updates: "500 updates"', path=("checkpoint", "every"))

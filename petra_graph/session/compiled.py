"""From a checked specification to programs: graph, shapes, stages, devices, frozen in one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from attrs import frozen

from petra_graph.compiler.emit import emit
from petra_graph.compiler.partition import partition, per_block
from petra_graph.errors import Problem, SpecError, shown, suggestion
from petra_graph.graph.stage_graph import INPUT, StageGraph
from petra_graph.measure.shapes import NodeShapes, measure_shapes
from petra_graph.program.method import METHODS, Method
from petra_graph.program.partition import Partition
from petra_graph.program.stage_program import StageProgram
from petra_graph.registry.contracts import DataFacts
from petra_graph.spec.model import ScheduleName, Spec

T = TypeVar("T")


@frozen(kw_only=True)
class Compiled:
    """Everything that is decided before anything is allocated."""

    graph: StageGraph
    shapes: Mapping[str, NodeShapes]
    method: Method
    schedule: ScheduleName
    partition: Partition
    programs: tuple[StageProgram, ...]

    @property
    def parameters(self) -> int:
        """Number of trained values in the network."""
        return sum(node.parameters for node in self.shapes.values())


def compile_graph(graph: StageGraph, spec: Spec, facts: DataFacts) -> Compiled:
    """Measure, cut and emit.

    Args:
        graph: the network; every node's declaration is known.
        spec: the rest of the specification.
        facts: what the data set's samples look like.

    Raises:
        SpecError: everything that is wrong with shapes, stages, devices or method.
    """
    problems: list[Problem] = []
    shapes = _collected(problems, lambda: measure_shapes(graph, *_sample(spec, facts)))
    devices = _collected(problems, lambda: device_names(spec))
    chosen = _collected(problems, lambda: method_and_schedule(spec))
    stages = spec.partition.stages
    cuts = per_block(graph) if stages == "per-block" else stages
    made = _collected(problems, lambda: partition(graph, cuts, devices or ("cpu",)))
    if shapes is None or devices is None or chosen is None or made is None:
        raise SpecError(problems)
    method, schedule = chosen
    streams = {INPUT: 1, **{name: len(node.outputs) for name, node in shapes.items()}}
    return Compiled(
        graph=graph,
        shapes=shapes,
        method=method,
        schedule=schedule,
        partition=made,
        programs=emit(graph, made, method, schedule, spec.method.accumulation, streams),
    )


def method_and_schedule(spec: Spec) -> tuple[Method, ScheduleName]:
    """Return the method and its schedule, the method's own where the specification names none.

    Raises:
        SpecError: no such method, a schedule under which it would be another method, or a global norm to clip by
            where no moment exists at which all stages' gradients are complete.
    """
    method = METHODS.get(spec.method.name)
    if method is None:
        message = f"unknown method {shown(spec.method.name)}"
        raise SpecError(Problem(message=message, hint=suggestion(spec.method.name, METHODS), path=("method", "name")))
    schedule = spec.method.schedule or method.schedules[0]
    problems = []
    if schedule not in method.schedules:
        problems.append(
            Problem(
                message=f'method "{method.name}" runs under {" or ".join(method.schedules)} (got {shown(schedule)})',
                hint=f'leave out `schedule`, or set schedule = "{method.schedules[0]}"',
                path=("method", "schedule"),
            )
        )
    clip = spec.optimizer.clip
    if clip is not None and clip.scope == "global" and schedule != "sequential":
        problems.append(
            Problem(
                message=f'scope = "global" needs a synchronous schedule (got {shown(schedule)})',
                hint="asynchronous stages update at different times, so no global norm exists when one steps; "
                'set scope = "stage", or method.schedule = "sequential"',
                path=("optimizer", "clip", "scope"),
            )
        )
    if problems:
        raise SpecError(problems)
    return method, schedule


def device_names(spec: Spec) -> tuple[str, ...]:
    """Return the devices, in order.

    A number means the first CUDA devices, or where torch sees none, the CPU.

    Raises:
        SpecError: a device does not exist here.
    """
    asked = spec.partition.devices
    available = torch.cuda.device_count()
    if isinstance(asked, int):
        if available == 0:
            return ("cpu",)
        asked = tuple(f"cuda:{index}" for index in range(asked))
    problems = [
        Problem(
            message=f"device {shown(name)} does not exist here",
            hint=f"allowed: cpu{''.join(f', cuda:{index}' for index in range(available))}",
            path=("partition", "devices"),
        )
        for name in asked
        if not _exists(name, available)
    ]
    if not asked:
        problems.append(Problem(message="no device is listed", hint='["cpu"]', path=("partition", "devices")))
    if problems:
        raise SpecError(problems)
    return tuple(asked)


def _exists(name: str, available: int) -> bool:
    kind, _, index = name.partition(":")
    if kind == "cuda" and index.isdecimal():
        return int(index) < available
    return name == "cpu"


def _sample(spec: Spec, facts: DataFacts) -> tuple[tuple[int, ...], torch.dtype]:
    """Return shape and type of a sample as the first node sees it; shapes are measured in float32.

    Raises:
        SpecError: the graph's declared input is not what the data set gives.
    """
    declared = spec.graph.input if spec.graph else None
    if declared is not None and (declared.shape, declared.dtype) != (facts.shape, facts.dtype):
        raise SpecError(
            Problem(
                message=f"the graph reads {declared.dtype} {list(declared.shape)}, "
                f'but data set "{spec.data.name}" gives {facts.dtype} {list(facts.shape)}',
                hint="leave out graph.input to take the data set's",
                path=("graph", "input"),
            )
        )
    return facts.shape, torch.int64 if facts.dtype == "int64" else torch.float32


def _collected(problems: list[Problem], make: Callable[[], T]) -> T | None:
    """Return what `make` makes, or None after taking note of its problems."""
    try:
        return make()
    except SpecError as error:
        problems.extend(error.problems)
        return None

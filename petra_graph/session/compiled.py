"""From a checked specification to programs: graph, shapes, stages, devices, frozen in one value."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import frozen

from petra_graph.compiler.choice import check_depths, method_and_schedule
from petra_graph.compiler.emit import emit
from petra_graph.compiler.partition import partition, per_block
from petra_graph.compiler.placement import process_devices, ranks
from petra_graph.compiler.precision import check_precision
from petra_graph.errors import Problem, SpecError, shown
from petra_graph.graph.stage_graph import INPUT, StageGraph
from petra_graph.measure.shapes import NodeShapes, measure_shapes
from petra_graph.program.method import Method
from petra_graph.program.partition import Partition
from petra_graph.program.stage_program import StageProgram
from petra_graph.registry.contracts import DataFacts
from petra_graph.session.findings import Findings
from petra_graph.spec.model import Schedule, Spec


@frozen(kw_only=True)
class Compiled:
    """Everything that is decided before anything is allocated."""

    graph: StageGraph
    shapes: Mapping[str, NodeShapes]
    method: Method
    schedule: Schedule
    partition: Partition
    programs: tuple[StageProgram, ...]

    @property
    def parameters(self) -> int:
        """Number of trained values in the network."""
        return sum(node.parameters for node in self.shapes.values())


def compile_graph(graph: StageGraph, spec: Spec, facts: DataFacts, processes: int = 1) -> Compiled:
    """Measure, cut and emit.

    Args:
        graph: the network; every node's declaration is known.
        spec: the rest of the specification.
        facts: what the data set's samples look like.
        processes: how many share the stages; each is a device.

    Raises:
        SpecError: everything that is wrong with shapes, stages, devices or method.
        PluginError: only blocks are at fault.
    """
    findings = Findings()
    sample_dtype = torch.int64 if facts.dtype == "int64" else torch.float32
    shapes = findings.attempt(lambda: measure_shapes(graph, facts.shape, sample_dtype), (), inside=True)
    devices = findings.attempt(lambda: device_names(spec, processes), (), inside=True)
    chosen = findings.attempt(lambda: method_and_schedule(spec.method, spec.optimizer.clip), (), inside=True)
    findings.attempt(lambda: check_precision(spec.precision), (), inside=True)
    stages = spec.partition.stages
    cuts = per_block(graph) if stages == "per-block" else stages
    made = findings.attempt(lambda: partition(graph, cuts, devices or ("cpu",)), (), inside=True)
    if made is not None and chosen is not None:
        findings.attempt(lambda: check_depths(chosen[1], graph, made), (), inside=True)
    if made is not None:
        findings.attempt(lambda: ranks(len(made.stages), processes), (), inside=True)
    if shapes is not None and spec.precision.streams == "grid":
        findings.add(_not_exact(graph, shapes))
    findings.raise_unlocated()
    assert shapes is not None
    assert made is not None
    assert chosen is not None
    method, schedule = chosen
    streams = {INPUT: 1, **{name: len(node.outputs) for name, node in shapes.items()}}
    return Compiled(
        graph=graph,
        shapes=shapes,
        method=method,
        schedule=schedule,
        partition=made,
        programs=emit(
            graph,
            made,
            method=method,
            schedule=schedule,
            accumulation=spec.method.accumulation,
            streams=streams,
            last_stage_keeps_graph=spec.method.last_stage == "keep-graph",
        ),
    )


def _not_exact(graph: StageGraph, shapes: Mapping[str, NodeShapes]) -> list[Problem]:
    """Name the reversible nodes that a grid does not make exact."""
    return [
        Problem(
            message=f'node "{node.name}": block "{node.block}" does more than add to its streams, so a grid is no use',
            hint='set precision.streams = "float", kind = "buffered", or use an additive coupling',
            path=node.path,
        )
        for node in graph.nodes.values()
        if node.kind == "reversible" and not shapes[node.name].additive
    ]


def device_names(spec: Spec, processes: int = 1) -> tuple[str, ...]:
    """Return the devices, in order.

    A number means the first CUDA devices, or where torch sees none, the CPU. Several processes have one device each.

    Raises:
        SpecError: a device does not exist here.
    """
    asked = spec.partition.devices
    available = torch.cuda.device_count()
    if processes > 1:
        return process_devices(spec.partition, processes, "cuda" if available else "cpu")
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

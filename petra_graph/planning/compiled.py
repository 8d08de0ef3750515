"""From a checked specification to programs: graph, shapes, stages, devices, frozen in one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from attrs import frozen

from petra_graph.compiler.lower import MessageTypes, lower
from petra_graph.compiler.method_check import check_depths, method_and_schedule
from petra_graph.compiler.partition import partition, per_block
from petra_graph.compiler.precision import check_precision
from petra_graph.compiler.processes import check_processes
from petra_graph.errors import Problem
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.measure.shapes import NodeShapes, measure_shapes
from petra_graph.planning.decide import Decider
from petra_graph.planning.devices import planned_devices, present_devices
from petra_graph.planning.problem_collector import ProblemCollector
from petra_graph.program.costs import CostTable
from petra_graph.program.devices import Device
from petra_graph.program.method import Method
from petra_graph.program.partition import Partition
from petra_graph.program.stage_program import StageProgram
from petra_graph.registry.contracts import DataFacts
from petra_graph.spec.model import Schedule, Spec


@frozen(kw_only=True)
class Compiled:
    """Everything that is decided before anything is allocated."""

    graph: NodeGraph
    shapes: Mapping[str, NodeShapes]
    method: Method
    schedule: Schedule
    partition: Partition
    programs: tuple[StageProgram, ...]
    ranks: tuple[int, ...]
    """The process that hosts each stage."""
    hosts: Partition
    """The same stages, on devices as the planner counts them: what works by itself is one."""
    devices: tuple[Device, ...]
    """Those, in the order of the pipeline; those without a stage too."""
    guarantee: str
    """How good the cut is, for people; "" where nothing was cut or placed by cost."""

    @property
    def parameters(self) -> int:
        """Number of trained values in the network."""
        return sum(node.parameters for node in self.shapes.values())


def compile_graph(
    graph: NodeGraph,
    spec: Spec,
    facts: DataFacts,
    costs: Callable[[NodeGraph, Spec], CostTable],
    *,
    processes: int = 1,
    planned: bool = False,
) -> Compiled:
    """Measure, cut and emit.

    Args:
        graph: the network; every node's declaration is known.
        spec: the rest of the specification.
        facts: what the data set's samples look like.
        costs: measures what nodes cost; called where a decision needs it.
        processes: how many share the stages; each is a device.
        planned: devices need not be here.

    Raises:
        SpecError: everything that is wrong with shapes, stages, devices or method.
        PluginError: only blocks are at fault.
        NoFeasiblePlan: nothing found keeps the devices' memory limits.
    """
    findings = ProblemCollector()
    sample_dtype = torch.int64 if facts.dtype == "int64" else torch.float32
    shapes = findings.attempt(lambda: measure_shapes(graph, facts.shape, sample_dtype), (), inside=True)
    present = None if planned else findings.attempt(lambda: present_devices(spec.partition, processes), (), inside=True)
    devices = findings.attempt(lambda: planned_devices(spec.partition), (), inside=True)
    chosen = findings.attempt(lambda: method_and_schedule(spec.method, spec.optimizer.clip), (), inside=True)
    findings.attempt(lambda: check_precision(spec.precision), (), inside=True)
    stages = spec.partition.stages
    if not isinstance(stages, int):
        listed = per_block(graph) if stages == "per-block" else stages
        findings.attempt(lambda: check_processes(len(listed), processes), (), inside=True)
        by_hand = findings.attempt(lambda: partition(graph, listed, ["any"]), (), inside=True)
        if by_hand is not None and chosen is not None:
            findings.attempt(lambda: check_depths(chosen[1], graph, by_hand), (), inside=True)
    if shapes is not None and spec.precision.streams == "grid":
        findings.add(_not_exact(graph, shapes))
    findings.raise_unlocated()
    assert shapes is not None
    assert devices is not None
    assert chosen is not None
    messages = message_types(shapes, spec)
    decider = Decider(graph=graph, spec=spec, chosen=chosen, messages=messages, costs=costs, devices=devices)
    decided = decider.decide_or_advise()
    made, ranks = decided.hosts, (0,) * len(decided.hosts.stages)
    if present is not None and processes > 1:
        decided = decider.among(decided, processes)
        ranks = decided.ranks
        made = decided.named([present[rank] for rank in ranks])
    elif present is not None:
        decided = decider.here(decided, present)
        made = decided.hosts
    return Compiled(
        graph=graph,
        shapes=shapes,
        method=chosen[0],
        schedule=decided.schedule,
        partition=made,
        programs=lower(
            graph,
            made,
            method=chosen[0],
            schedule=decided.schedule,
            accumulation=spec.method.accumulation,
            messages=messages,
            last_stage_keeps_graph=spec.method.last_stage == "keep-graph",
        ),
        ranks=ranks,
        hosts=decided.hosts,
        devices=decided.devices,
        guarantee=decided.guarantee,
    )


def message_types(shapes: Mapping[str, NodeShapes], spec: Spec) -> MessageTypes:
    """Return what messages between stages hold, at the micro-batch and precision of `spec`."""
    return MessageTypes(
        streams={name: node.streams for name, node in shapes.items()},
        precision=spec.precision,
        batch=spec.data.batch,
        evaluation_batch=spec.data.evaluation_batch or spec.data.batch,
    )


def _not_exact(graph: NodeGraph, shapes: Mapping[str, NodeShapes]) -> list[Problem]:
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

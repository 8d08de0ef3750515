"""From a checked specification to programs: graph, shapes, stages, devices, frozen in one value.

    stages     "per-block", or listed: as they are; a number: cut by cost
    devices    as many as stages: one each; fewer: by cost, or where memory has no limit and one device is all, there
    schedule   as named; "auto": the least depths at full speed

Costs are measured only where one of these asks for them. Cuts, places and depths follow from the devices that the
specification speaks of, present or not, so that a plan and its run, on whatever runtime, are of the same stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from attrs import evolve, frozen

from petra_graph.compiler.choice import check_depths, method_and_schedule
from petra_graph.compiler.cut import Cut, cut, placed, resolved_schedule
from petra_graph.compiler.emit import emit
from petra_graph.compiler.partition import partition, per_block
from petra_graph.compiler.placement import even_ranks, process_devices
from petra_graph.compiler.precision import check_precision
from petra_graph.errors import Problem
from petra_graph.graph.stage_graph import INPUT, StageGraph
from petra_graph.measure.shapes import NodeShapes, measure_shapes
from petra_graph.program.costs import CostTable
from petra_graph.program.devices import Device
from petra_graph.program.method import Method
from petra_graph.program.partition import Partition
from petra_graph.program.stage_program import StageProgram
from petra_graph.registry.contracts import DataFacts
from petra_graph.session.devices import planned_devices, present_devices
from petra_graph.session.findings import Findings
from petra_graph.session.setting import setting_of
from petra_graph.spec.model import AskedSchedule, Schedule, Spec


@frozen(kw_only=True)
class Compiled:
    """Everything that is decided before anything is allocated."""

    graph: StageGraph
    shapes: Mapping[str, NodeShapes]
    method: Method
    schedule: Schedule
    partition: Partition
    programs: tuple[StageProgram, ...]
    devices: tuple[Device, ...]
    """In the order of the pipeline, those without a stage too."""
    guarantee: str
    """How good the cut is, for people; "" where nothing was cut or placed by cost."""
    ranks: tuple[int, ...]
    """The process of each stage."""

    @property
    def parameters(self) -> int:
        """Number of trained values in the network."""
        return sum(node.parameters for node in self.shapes.values())


def compile_graph(
    graph: StageGraph,
    spec: Spec,
    facts: DataFacts,
    costs: Callable[[], CostTable],
    *,
    planned: bool = False,
    processes: int = 1,
) -> Compiled:
    """Measure, cut and emit.

    Args:
        graph: the network; every node's declaration is known.
        spec: the rest of the specification.
        facts: what the data set's samples look like.
        costs: measures what nodes cost; called where a decision needs it.
        planned: devices need not be here.
        processes: how many share the stages of a run; each is a device.

    Raises:
        SpecError: everything that is wrong with shapes, stages, devices or method.
        PluginError: only blocks are at fault.
        NoFeasiblePlan: nothing found keeps the devices' memory limits.
    """
    findings = Findings()
    sample_dtype = torch.int64 if facts.dtype == "int64" else torch.float32
    shapes = findings.attempt(lambda: measure_shapes(graph, facts.shape, sample_dtype), (), inside=True)
    present = (
        None if planned or processes > 1 else findings.attempt(lambda: present_devices(spec.partition), (), inside=True)
    )
    devices = findings.attempt(lambda: planned_devices(spec.partition), (), inside=True)
    chosen = findings.attempt(lambda: method_and_schedule(spec.method, spec.optimizer.clip), (), inside=True)
    findings.attempt(lambda: check_precision(spec.precision), (), inside=True)
    stages = spec.partition.stages
    if not isinstance(stages, int):
        listed = per_block(graph) if stages == "per-block" else stages
        by_hand = findings.attempt(lambda: partition(graph, listed, ["any"]), (), inside=True)
        if by_hand is not None and chosen is not None:
            findings.attempt(lambda: check_depths(chosen[1], graph, by_hand), (), inside=True)
    if shapes is not None and spec.precision.streams == "grid":
        findings.add(_not_exact(graph, shapes))
    findings.raise_unlocated()
    assert shapes is not None
    assert devices is not None
    assert chosen is not None
    decided = _decided(graph, spec, chosen, costs, devices)
    ranks = (0,) * len(decided.partition.stages)
    if present is not None:
        decided = decided.on(present, spec)
    elif processes > 1:
        ranks = _shared(graph, spec, (chosen[0], decided.schedule), costs, made=decided.partition, processes=processes)
        decided = decided.hosted(process_devices(spec.partition, processes, _available()), ranks)
    return Compiled(
        graph=graph,
        shapes=shapes,
        method=chosen[0],
        schedule=decided.schedule,
        partition=decided.partition,
        programs=emit(
            graph,
            decided.partition,
            method=chosen[0],
            schedule=decided.schedule,
            accumulation=spec.method.accumulation,
            streams={INPUT: 1, **{name: len(node.outputs) for name, node in shapes.items()}},
            last_stage_keeps_graph=spec.method.last_stage == "keep-graph",
        ),
        devices=decided.devices,
        guarantee=decided.guarantee,
        ranks=ranks,
    )


@frozen(kw_only=True)
class _Decided:
    """Stages, places and depths."""

    partition: Partition
    schedule: Schedule
    devices: tuple[Device, ...]
    guarantee: str

    def on(self, present: tuple[str, ...], spec: Spec) -> _Decided:
        """Return the same on the devices that are here: each planned one in its order, or all on the one there is."""
        names = tuple(dict.fromkeys(present))
        place = {device.name: names[index] if len(names) > 1 else names[0] for index, device in enumerate(self.devices)}
        stages = tuple(evolve(stage, device=place[stage.device]) for stage in self.partition.stages)
        devices = self.devices if names == tuple(place) else planned_devices(spec.partition, names)
        return evolve(self, partition=Partition(stages=stages), devices=devices)

    def hosted(self, processes: tuple[str, ...], ranks: tuple[int, ...]) -> _Decided:
        """Return the same with each stage on the device of its process."""
        stages = tuple(
            evolve(stage, device=processes[rank]) for stage, rank in zip(self.partition.stages, ranks, strict=True)
        )
        return evolve(self, partition=Partition(stages=stages))


def _shared(
    graph: StageGraph,
    spec: Spec,
    chosen: tuple[Method, Schedule],
    costs: Callable[[], CostTable],
    *,
    made: Partition,
    processes: int,
) -> tuple[int, ...]:
    """Return the process of each stage, by cost; what they compute was decided before, and does not change.

    Raises:
        SpecError: a process would have no stage.
    """
    even = even_ranks(len(made.stages), processes)
    if len(made.stages) == processes:
        return even
    alike = evolve(spec.partition, devices=processes, memory=None, device_type=_same(spec.partition.device_type))
    devices = planned_devices(alike)
    cuts = tuple(stage.nodes for stage in made.stages)
    places = placed(setting_of(graph, spec, chosen, costs(), devices), cuts, spec.partition.strategy).partition.stages
    names = [device.name for device in devices]
    found = tuple(names.index(stage.device) for stage in places)
    # Where links cost more than they save the solver leaves devices empty; every process is to have a stage.
    return found if set(found) == set(range(processes)) else even


def _same(given: str | tuple[str, ...] | None) -> str | None:
    return given if given is None or isinstance(given, str) else given[0]


def _available() -> str:
    return "cuda" if torch.cuda.device_count() else "cpu"


def _decided(
    graph: StageGraph,
    spec: Spec,
    chosen: tuple[Method, AskedSchedule],
    costs: Callable[[], CostTable],
    devices: tuple[Device, ...],
) -> _Decided:
    """Decide stages, places and depths, by cost where the specification leaves them open."""
    made = _cut(graph, spec, chosen, costs, devices)
    check_depths(chosen[1], graph, made.partition)
    schedule = chosen[1]
    if schedule == "auto":
        schedule = resolved_schedule(setting_of(graph, spec, chosen, costs(), devices), made.partition)
    return _Decided(partition=made.partition, schedule=schedule, devices=devices, guarantee=made.guarantee)


def _cut(
    graph: StageGraph,
    spec: Spec,
    chosen: tuple[Method, AskedSchedule],
    costs: Callable[[], CostTable],
    devices: tuple[Device, ...],
) -> Cut:
    asked = spec.partition
    if isinstance(asked.stages, int):
        return cut(setting_of(graph, spec, chosen, costs(), devices), asked.stages, asked.strategy)
    cuts = per_block(graph) if asked.stages == "per-block" else asked.stages
    limited = any(device.memory_bytes is not None for device in devices)
    if isinstance(asked.devices, tuple) and len(asked.devices) == len(cuts):
        return Cut(partition=partition(graph, cuts, asked.devices), guarantee="")
    if (len(devices) == 1 or len(devices) >= len(cuts)) and not limited:
        names = [device.name for device in devices[: len(cuts)]]
        return Cut(partition=partition(graph, cuts, names), guarantee="")
    return placed(setting_of(graph, spec, chosen, costs(), devices), cuts, asked.strategy)


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

"""A plan that was saved: read, compared with what is to run, and taken as its placement.

Decision: a plan only fixes what the specification leaves open, as a resolved specification does. If the two state different things,
neither wins: the run is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from petra_graph.compiler.lower import partition
from petra_graph.compiler.plan import Plan, read_plan
from petra_graph.compiler.spec_checks import check_depths
from petra_graph.errors import SpecError, shown
from petra_graph.graph.node_graph import INPUT
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.planning.place_network import check_limits, check_stages
from petra_graph.planning.spec_devices import machine_of, planned_devices
from petra_graph.program.stage_program import Placement
from petra_graph.record.run_directory import PLAN
from petra_graph.units import bounded

_WIDTH = 60


@frozen
class SavedPlan:
    """A plan, with where it is from."""

    plan: Plan
    source: str
    """For messages."""

    @classmethod
    def read(cls, source: str) -> SavedPlan:
        """Read a plan.

        Args:
            source: a JSON file, or a run's directory.

        Raises:
            SpecError: it cannot be read, is not a plan, is damaged, or is one of another version.
        """
        path, hint = Path(source), ""
        if path.is_dir():
            path = path / PLAN
            hint = "a run has a plan if costs decided its placement, or if it was given one: `petra-graph plan SPEC --json --output FILE`"
        try:
            return cls(read_plan(path.read_bytes(), str(path)), str(path))
        except OSError as error:
            raise SpecError(f"cannot read the plan {path}: {error.strerror or error}", hint) from None

    def placement(self, network: MeasuredNetwork, present: Sequence[str], processes: int) -> Placement:
        """Return the plan's stages and depths on devices that are present.

        Args:
            network: what is to run.
            present: the names of its devices; of several processes each one's.
            processes: in one pipeline.

        Raises:
            SpecError: the plan is of another network, of other settings or of other devices; the first difference.
            NoFeasiblePlan: the plan's stages do not keep the memory limits of these devices.
        """
        plan, spec = self.plan, network.spec
        named = [device.name for device in plan.devices]
        if processes > 1:  # A process is a device, by the plan's names.
            assumed = planned_devices(spec.partition, tuple(named))
            devices = tuple(evolve(one, machine=machine_of(rank, one.type)) for rank, one in enumerate(assumed))
        else:
            here = planned_devices(spec.partition, tuple(dict.fromkeys(present)))
            devices = tuple(device for device in here if device.name in named)
        for key, planned, own in _choices(plan, network):
            self._compare(key, planned, own)
        self._compare(
            "devices", {one.name: one.type for one in plan.devices}, {one.name: one.type.name for one in devices}
        )
        if processes > 1:
            self._compare("processes", len(plan.devices), processes)
        try:
            stages = partition(network.graph, [stage.nodes for stage in plan.stages], [""])
            check_depths(plan.schedule, network.graph, stages)
            hosts = [named.index(stage.device) for stage in plan.stages]
        except (SpecError, ValueError) as error:
            raise SpecError(f"{self.source} is damaged: {error}", "restore it, or make it again") from error
        kept = {node.name: node.keeps for node in plan.nodes if node.keeps is not None}
        placement = Placement(
            stages=tuple(
                evolve(stage, device=named[host], rank=host if processes > 1 else 0)
                for stage, host in zip(stages.stages, hosts, strict=True)
            ),
            devices=devices,
            schedule=plan.schedule,
            kept=kept if spec.method.keep == "auto" else None,
            notes=(f"stages, devices and depths are those of {self.source}",),
        )
        for segment in (segment for program in network.lowering.placed(placement) for segment in program.segments):
            for name in kept.keys() & set(segment.nodes):
                self._compare(f"node {shown(name)}: keeps", kept[name], segment.keeps)
        check_stages(network, placement)
        check_limits(network, placement)
        return placement

    def _compare(self, key: str, planned: Any, here: Any) -> None:
        if planned != here:
            came, wanted = (bounded(shown(one), _WIDTH) for one in (planned, here))
            hint = "`petra-graph plan SPEC --json --output FILE`, with the --set of the run, makes a new one"
            raise SpecError(f"{self.source} is a plan of {key} = {came}, not {wanted}", hint)


def _choices(plan: Plan, network: MeasuredNetwork) -> Iterator[tuple[str, Any, Any]]:
    """Yield the keys that both state, each with what the plan has and what is to run."""
    spec, checked, cut = network.spec, network.checked, [list(stage.nodes) for stage in plan.stages]
    yield "method.name", plan.method, checked.method.name
    yield "method.accumulation", plan.accumulation, spec.method.accumulation
    yield "data.batch", plan.micro_batch, spec.data.batch
    yield "partition.replicas", plan.replicas, spec.partition.replicas
    if checked.stages is not None:
        yield "partition.stages", cut, [list(stage.nodes) for stage in checked.stages.stages]
    elif isinstance(spec.partition.stages, int):
        yield "partition.stages", len(cut), spec.partition.stages
    if checked.schedule != "auto":
        yield "method.schedule", plan.schedule, checked.schedule
    planned = {node.name: node for node in plan.nodes}
    yield "nodes", sorted(planned), sorted(network.graph.nodes)
    for name, node in network.graph.nodes.items():
        key, one, shapes = f"node {shown(name)}: ", planned[name], network.shapes[name]
        yield f"{key}kind", one.kind, node.kind
        yield f"{key}block", one.block, node.block
        yield f"{key}inputs", one.inputs, tuple(read for read in node.inputs if read != INPUT)
        yield f"{key}outputs", one.outputs, shapes.outputs
        yield f"{key}parameters", one.parameters, shapes.parameters

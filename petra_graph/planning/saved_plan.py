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
from petra_graph.program.device_types import Device
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
        path = Path(source)
        if path.is_dir():
            resolved, path = path / "resolved.toml", path / PLAN
            if resolved.exists() and not path.exists():
                made = f"`petra-graph plan {resolved} --json --output FILE` makes its plan"
                raise SpecError(f"there is no {path}: the run was not planned", made)
        try:
            return cls(read_plan(path.read_bytes(), str(path)), str(path))
        except OSError as error:
            raise SpecError(f"cannot read the plan {path}: {error.strerror or error}") from None

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
        plan, named = self.plan, [device.name for device in self.plan.devices]
        if processes > 1:  # A process is a device, by the plan's names.
            assumed = planned_devices(network.spec.partition, tuple(named))
            devices = tuple(evolve(one, machine=machine_of(rank, one.type)) for rank, one in enumerate(assumed))
        else:
            here = planned_devices(network.spec.partition, tuple(dict.fromkeys(present)))
            devices = tuple(device for device in here if device.name in named)
        for key, planned, own in _both(network, plan, devices, processes):
            self._compare(key, planned, own)
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
            kept=kept if network.spec.method.keep == "auto" else None,
            notes=(f"stages, devices and depths are those of {self.source}",),
        )
        for segment in (segment for program in network.programs(placement) for segment in program.segments):
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


def _both(
    network: MeasuredNetwork, plan: Plan, devices: Sequence[Device], processes: int
) -> Iterator[tuple[str, Any, Any]]:
    """Yield what the specification states as well: its key, the plan's value, and the value here."""
    spec, checked = network.spec, network.checked
    yield "method.name", plan.method, checked.method.name
    yield "method.accumulation", plan.accumulation, spec.method.accumulation
    yield "data.batch", plan.micro_batch, spec.data.batch
    yield "partition.replicas", plan.replicas, spec.partition.replicas
    if checked.stages is not None:
        given = [list(stage.nodes) for stage in checked.stages.stages]
        yield "partition.stages", [list(stage.nodes) for stage in plan.stages], given
    elif isinstance(spec.partition.stages, int):
        yield "partition.stages", len(plan.stages), spec.partition.stages
    if checked.schedule != "auto":
        yield "method.schedule", plan.schedule, checked.schedule
    planned = {node.name: node for node in plan.nodes}
    yield "nodes", sorted(planned), sorted(network.graph.nodes)
    for name, node in network.graph.nodes.items():
        key, shapes, here = f"node {shown(name)}: ", network.shapes[name], planned[name]
        yield key + "kind", here.kind, node.kind
        yield key + "block", here.block, node.block
        yield key + "inputs", here.inputs, tuple(producer for producer in node.inputs if producer != INPUT)
        yield key + "outputs", here.outputs, tuple(map(tuple, shapes.outputs))
        yield key + "parameters", here.parameters, shapes.parameters
    types = {device.name: device.type.name for device in devices}
    yield "devices", {device.name: device.type for device in plan.devices}, types
    if processes > 1:
        yield "processes", len(plan.devices), processes

"""A plan that was saved as JSON: read, compared with what is to run, and taken as its placement.

Decision: a plan only fixes what the specification leaves open, as a resolved specification does. If the two state different things,
neither wins: the run is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from petra_graph.compiler.lower import partition
from petra_graph.compiler.spec_checks import check_depths
from petra_graph.errors import SpecError, shown
from petra_graph.graph.node_graph import INPUT
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.planning.place_network import check_limits, check_stages
from petra_graph.planning.spec_devices import machine_of, planned_devices
from petra_graph.program.device_types import Device
from petra_graph.program.placement import Placement
from petra_graph.program.plan_document import Document, read_document, reading
from petra_graph.record.run_directory import PLAN
from petra_graph.spec.model import KeepsByNode
from petra_graph.units import bounded

_WIDTH = 60


@frozen
class SavedPlan:
    """A plan's document, with where it is from."""

    document: Document
    source: str
    """For messages."""

    @classmethod
    def read(cls, source: str) -> SavedPlan:
        """Read a plan.

        Args:
            source: a JSON file, or a run's directory.

        Raises:
            SpecError: it cannot be read, is not a plan, or is one of another version.
        """
        path = Path(source)
        if path.is_dir():
            resolved, path = path / "resolved.toml", path / PLAN
            if resolved.exists() and not path.exists():
                made = f"`petra-graph plan {resolved} --json --output FILE` makes its plan"
                raise SpecError(f"there is no {path}: the run was not planned", made)
        try:
            return cls(read_document(path.read_bytes(), str(path)), str(path))
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
        with reading(self.source):
            plan, named = self.document, [device["name"] for device in self.document["devices"]]
            devices = _present_devices(network, present, named, processes)
            self._compare(_settings(network, plan))
            self._compare(_nodes(network, plan))
            here = {device.name: device.type.name for device in devices}
            self._compare([("devices", {one["name"]: one["type"] for one in plan["devices"]}, here)])
            self._compare([("processes", len(named), processes)] if processes > 1 else [])
            schedule = _as_schedule(plan["schedule"])
            stages = partition(network.graph, [stage["nodes"] for stage in plan["stages"]], [""])
            check_depths(schedule, network.graph, stages)
            hosts = [named[named.index(stage["device"])] for stage in plan["stages"]]
            ranks = {name: rank for rank, name in enumerate(named)} if processes > 1 else {}
            kept: KeepsByNode = {node["name"]: node["keeps"] for node in plan["nodes"] if node.get("keeps")}
            placement = Placement(
                stages=tuple(
                    evolve(stage, device=host, rank=ranks.get(host, 0))
                    for stage, host in zip(stages.stages, hosts, strict=True)
                ),
                devices=devices,
                schedule=schedule,
                kept=kept if network.spec.method.keep == "auto" else None,
                notes=(f"stages, devices and depths are those of {self.source}",),
            )
        segments = [one for program in network.programs(placement) for one in program.segments if one.kind != "head"]
        keeps = {name: segment.keeps for segment in segments for name in segment.nodes}
        self._compare((f"node {shown(name)}: keeps", kept[name], keeps[name]) for name in keeps.keys() & kept.keys())
        check_stages(network, placement)
        check_limits(network, placement)
        return placement

    def _compare(self, values: Iterable[tuple[str, Any, Any]]) -> None:
        """Refuse the plan at the first of some (key, value in the plan, value here) that differ."""
        for key, planned, here in values:
            if planned != here:
                came, wanted = (bounded(shown(one), _WIDTH) for one in (planned, here))
                hint = "`petra-graph plan SPEC --json --output FILE`, with the --set of the run, makes a new one"
                raise SpecError(f"{self.source} is a plan of {key} = {came}, not {wanted}", hint)


def _settings(network: MeasuredNetwork, plan: Document) -> Iterator[tuple[str, Any, Any]]:
    """Yield the keys that the specification states."""
    spec, checked = network.spec, network.checked
    yield "method.name", plan["method"], checked.method.name
    yield "method.accumulation", plan["accumulation"], spec.method.accumulation
    yield "data.batch", plan["micro_batch"], spec.data.batch
    yield "partition.replicas", plan.get("replicas", 1), spec.partition.replicas
    stages = [stage["nodes"] for stage in plan["stages"]]
    if checked.stages is not None:
        yield "partition.stages", stages, [list(stage.nodes) for stage in checked.stages.stages]
    elif isinstance(spec.partition.stages, int):
        yield "partition.stages", len(stages), spec.partition.stages
    if checked.schedule != "auto":
        yield "method.schedule", _as_schedule(plan["schedule"]), checked.schedule


def _as_schedule(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _nodes(network: MeasuredNetwork, plan: Document) -> Iterator[tuple[str, Any, Any]]:
    planned = {node["name"]: node for node in plan["nodes"]}
    yield "nodes", sorted(planned), sorted(network.graph.nodes)
    for name, node in network.graph.nodes.items():
        here = {
            "kind": node.kind,
            "block": node.block,
            "inputs": [producer for producer in node.inputs if producer != INPUT],
            "outputs": [list(shape) for shape in network.shapes[name].outputs],
            "parameters": network.shapes[name].parameters,
        }
        yield from ((f"node {shown(name)}: {key}", planned[name][key], value) for key, value in here.items())


def _present_devices(
    network: MeasuredNetwork, present: Sequence[str], named: Sequence[str], processes: int
) -> tuple[Device, ...]:
    """Return the devices of processes, by the plan's names, since a process is one; or those of this process that the plan names."""
    if processes > 1:
        devices = planned_devices(network.spec.partition, tuple(named))
        return tuple(evolve(device, machine=machine_of(rank, device.type)) for rank, device in enumerate(devices))
    devices = planned_devices(network.spec.partition, tuple(dict.fromkeys(present)))
    return tuple(device for device in devices if device.name in named)

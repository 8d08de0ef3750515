"""A plan that was saved as JSON: read, compared with what is to run, and taken as its placement.

Decision: a plan only fixes what the specification leaves open, as a resolved specification does. Where the two state different things,
neither wins: the run is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from petra_graph.compiler.listed_stages import partition
from petra_graph.compiler.spec_checks import check_depths
from petra_graph.errors import Problem, SpecError, shown
from petra_graph.graph.node_graph import INPUT
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.planning.place.place_network import check_limits, check_stages
from petra_graph.planning.spec_devices import machine_of, planned_devices
from petra_graph.program.device_types import Device
from petra_graph.program.placement import Placement
from petra_graph.program.plan_document import Document, read_document
from petra_graph.program.stage_program import StageProgram
from petra_graph.record.run_directory import PLAN
from petra_graph.spec.model import KeepsByNode
from petra_graph.spec.regular_file import read_regular
from petra_graph.units import bounded, plural

_NEW = "`petra-graph plan SPEC --json --output FILE`, with the --set of the run, makes a new one"
_LISTED, _WIDTH = 5, 60


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
            return cls(read_document(read_regular(path), str(path)), str(path))
        except OSError as error:
            raise SpecError(f"cannot read the plan {path}: {error.strerror or error}") from None

    def placement(self, network: MeasuredNetwork, present: Sequence[str], processes: int) -> Placement:
        """Return the plan's stages and depths on devices that are present.

        Args:
            network: what is to run.
            present: the names of its devices; of several processes each one's.
            processes: in one pipeline.

        Raises:
            SpecError: the plan is of another network, of other settings or of other devices.
            NoFeasiblePlan: the plan's stages do not keep the memory limits of these devices.
        """
        plan = self.document
        named = [device["name"] for device in plan["devices"]]
        devices = _on_processes(network, named) if processes > 1 else _here(network, present, named)
        settings = (
            f"{key} = {bounded(shown(planned), _WIDTH)}, not {bounded(shown(own), _WIDTH)}"
            for key, planned, own in _settings(network, plan)
            if planned != own
        )
        found = [*settings, *_other_nodes(network, plan), *_other_devices(plan, devices, present, processes)]
        if found:
            texts = [f"{self.source} is a plan of {text}" for text in found[:_LISTED]]
            raise SpecError([Problem(message=text, hint=_NEW) for text in texts])
        schedule = _listed(plan["schedule"])
        stages = partition(network.graph, [stage["nodes"] for stage in plan["stages"]], [""])
        check_depths(schedule, network.graph, stages)
        hosts = [stage["device"] for stage in plan["stages"]]
        ranks = {name: rank for rank, name in enumerate(named)} if processes > 1 else {}
        placed = tuple(
            evolve(stage, device=host, rank=ranks.get(host, 0))
            for stage, host in zip(stages.stages, hosts, strict=True)
        )
        placement = Placement(
            stages=placed,
            devices=devices,
            schedule=schedule,
            kept=_kept(plan) if network.spec.method.keep == "auto" else None,
            notes=(f"stages, devices and depths are those of {self.source}",),
        )
        self._check_kept(network.programs(placement))
        check_stages(network, placement)
        check_limits(network, placement)
        return placement

    def _check_kept(self, programs: Sequence[StageProgram]) -> None:
        """Check that nodes keep what they keep in the plan; one that was saved by an older version does not say."""
        kept = _kept(self.document)
        others = [
            f"{self.source} is a plan in which node {shown(name)} keeps {shown(kept[name])}, not {shown(segment.keeps)}"
            for program in programs
            for segment in program.segments
            for name in segment.nodes
            if kept.get(name, segment.keeps) != segment.keeps
        ]
        if others:
            raise SpecError([Problem(message=text, hint=_NEW) for text in others[:_LISTED]])


def _settings(network: MeasuredNetwork, plan: Document) -> Iterator[tuple[str, Any, Any]]:
    """Yield keys that the specification states, with the plan's value and its own."""
    spec = network.spec
    yield "method.name", plan["method"], network.checked.method.name
    yield "method.accumulation", plan["accumulation"], spec.method.accumulation
    yield "data.batch", plan["micro_batch"], spec.data.batch
    yield "partition.replicas", plan.get("replicas", 1), spec.partition.replicas
    stages = tuple(tuple(stage["nodes"]) for stage in plan["stages"])
    given = network.checked.stages
    if given is not None:
        yield "partition.stages", stages, tuple(stage.nodes for stage in given.stages)
    elif isinstance(spec.partition.stages, int):
        yield "partition.stages", len(stages), spec.partition.stages
    if network.checked.schedule != "auto":
        yield "method.schedule", _listed(plan["schedule"]), network.checked.schedule


def _kept(plan: Document) -> KeepsByNode:
    return {node["name"]: node["keeps"] for node in plan["nodes"] if node.get("keeps")}


def _listed(schedule: Any) -> Any:
    return tuple(schedule) if isinstance(schedule, list) else schedule


def _other_nodes(network: MeasuredNetwork, plan: Document) -> Iterator[str]:
    planned = {node["name"]: node for node in plan["nodes"]}
    for name in [*planned, *(name for name in network.graph.nodes if name not in planned)]:
        node = network.graph.nodes.get(name)
        if node is None or name not in planned:
            yield f"another network: the {'run' if node is None else 'plan'} has no node {shown(name)}"
            continue
        shapes = network.shapes[name]
        own = {
            "kind": node.kind,
            "block": node.block,
            "inputs": [producer for producer in node.inputs if producer != INPUT],
            "outputs": [list(shape) for shape in shapes.outputs],
            "parameters": shapes.parameters,
        }
        for key, value in own.items():
            if planned[name][key] != value:
                yield f"another network: node {shown(name)} has {key} {shown(planned[name][key])}, not {shown(value)}"


def _on_processes(network: MeasuredNetwork, named: Sequence[str]) -> tuple[Device, ...]:
    """Return the devices of processes, by the plan's names: a process is one."""
    devices = planned_devices(network.spec.partition, tuple(named))
    return tuple(evolve(device, machine=machine_of(rank, device.type)) for rank, device in enumerate(devices))


def _here(network: MeasuredNetwork, present: Sequence[str], named: Sequence[str]) -> tuple[Device, ...]:
    """Return the devices of this process that the plan names."""
    devices = planned_devices(network.spec.partition, tuple(dict.fromkeys(present)))
    return tuple(device for device in devices if device.name in named)


def _other_devices(plan: Document, devices: Sequence[Device], present: Sequence[str], processes: int) -> Iterator[str]:
    planned, own = plan["devices"], {device.name: device.type.name for device in devices}
    if processes > 1 and processes != len(planned):
        yield f"{plural(len(planned), 'device')}, and each of {processes} processes is one: start as many as the plan has"
    elif missing := [device["name"] for device in planned if device["name"] not in own]:
        here = f"not here, where there is {', '.join(dict.fromkeys(present))}: start as many processes"
        yield f"{plural(len(planned), 'device')}, and {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} {here}"
    else:
        for device in planned:
            if device["type"] != own[device["name"]]:
                yield f"{device['name']} of type {device['type']}, which is of type {own[device['name']]} here"

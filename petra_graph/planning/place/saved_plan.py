"""A plan that was saved as JSON: read, compared with what is to run, and taken as its placement.

Decision: a plan only fixes what the specification leaves open, as a resolved specification does. If the two state different things,
neither wins: the run is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
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
from petra_graph.record.run_directory import PLAN
from petra_graph.spec.model import KeepsByNode
from petra_graph.spec.regular_file import read_regular
from petra_graph.units import bounded, plural

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
        plan, named = self.document, [device["name"] for device in self.document["devices"]]
        devices = _present_devices(network, present, named, processes)
        self._refuse(
            [
                *_other_settings(network, plan),
                *_other_nodes(network, plan),
                *_other_devices(plan, devices, present, processes),
            ]
        )
        schedule = _as_schedule(plan["schedule"])
        stages = partition(network.graph, [stage["nodes"] for stage in plan["stages"]], [""])
        check_depths(schedule, network.graph, stages)
        hosts = [stage["device"] for stage in plan["stages"]]
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
        self._refuse(
            f"a run in which node {shown(name)} keeps {shown(kept[name])}, not {shown(segment.keeps)}"
            for program in network.programs(placement)
            for segment in program.segments
            for name in segment.nodes
            if kept.get(name, segment.keeps) != segment.keeps  # a plan that an older version saved does not say it
        )
        check_stages(network, placement)
        check_limits(network, placement)
        return placement

    def _refuse(self, differences: Iterable[str]) -> None:
        hint = "`petra-graph plan SPEC --json --output FILE`, with the --set of the run, makes a new one"
        if found := list(islice(differences, _LISTED)):
            raise SpecError([Problem(message=f"{self.source} is a plan of {text}", hint=hint) for text in found])


def _other_settings(network: MeasuredNetwork, plan: Document) -> Iterator[str]:
    """Yield keys that the specification states otherwise."""
    spec, checked = network.spec, network.checked
    stages = tuple(tuple(stage["nodes"]) for stage in plan["stages"])
    stated: dict[str, tuple[Any, Any]] = {
        "method.name": (plan["method"], checked.method.name),
        "method.accumulation": (plan["accumulation"], spec.method.accumulation),
        "data.batch": (plan["micro_batch"], spec.data.batch),
        "partition.replicas": (plan.get("replicas", 1), spec.partition.replicas),
    }
    if checked.stages is not None:
        stated["partition.stages"] = stages, tuple(stage.nodes for stage in checked.stages.stages)
    elif isinstance(spec.partition.stages, int):
        stated["partition.stages"] = len(stages), spec.partition.stages
    if checked.schedule != "auto":
        stated["method.schedule"] = _as_schedule(plan["schedule"]), checked.schedule
    for key, (planned, here) in stated.items():
        if planned != here:
            yield f"{key} = {bounded(shown(planned), _WIDTH)}, not {bounded(shown(here), _WIDTH)}"


def _as_schedule(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _other_nodes(network: MeasuredNetwork, plan: Document) -> Iterator[str]:
    planned = {node["name"]: node for node in plan["nodes"]}
    for name in dict.fromkeys((*planned, *network.graph.nodes)):
        node = network.graph.nodes.get(name)
        if node is None or name not in planned:
            yield f"another network: the {'run' if node is None else 'plan'} has no node {shown(name)}"
            continue
        shapes = network.shapes[name]
        here = {
            "kind": node.kind,
            "block": node.block,
            "inputs": [producer for producer in node.inputs if producer != INPUT],
            "outputs": [list(shape) for shape in shapes.outputs],
            "parameters": shapes.parameters,
        }
        for key, value in here.items():
            if planned[name][key] != value:
                yield f"another network: node {shown(name)} has {key} {shown(planned[name][key])}, not {shown(value)}"


def _present_devices(
    network: MeasuredNetwork, present: Sequence[str], named: Sequence[str], processes: int
) -> tuple[Device, ...]:
    """Return the devices of processes, by the plan's names, since a process is one; or those of this process that the plan names."""
    if processes > 1:
        devices = planned_devices(network.spec.partition, tuple(named))
        return tuple(evolve(device, machine=machine_of(rank, device.type)) for rank, device in enumerate(devices))
    devices = planned_devices(network.spec.partition, tuple(dict.fromkeys(present)))
    return tuple(device for device in devices if device.name in named)


def _other_devices(plan: Document, devices: Sequence[Device], present: Sequence[str], processes: int) -> Iterator[str]:
    planned, here = plan["devices"], {device.name: device.type.name for device in devices}
    missing = [device["name"] for device in planned if device["name"] not in here]
    if processes > 1 and processes != len(planned):
        yield f"{plural(len(planned), 'device')}, and each of {processes} processes is one: start as many as the plan has"
    elif missing:
        found = ", ".join(dict.fromkeys(present))
        yield f"{plural(len(planned), 'device')}, and {', '.join(missing)} cannot be found among {found}: start as many processes"
    else:
        for device in planned:
            if device["type"] != here[device["name"]]:
                yield f"{device['name']} of type {device['type']}, which is of type {here[device['name']]} here"

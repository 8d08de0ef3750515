"""The place step: the devices of a specification, and the stages, their devices and their depths, decided if the specification leaves them open.

    stages     "per-block", or listed: as they are; a number: cut by cost, the fastest by the time model; "auto": the fewest that are about as fast
    devices    as many as stages: one each; fewer: by cost, or all stages on the only device if memory has no limit; more: the first ones, or the
               faster ones if they differ; in the order that is faster, or in the listed one
    keep       as the method says, or listed; "auto": as fast as memory allows (`compiler.node_table`)
    schedule   as named; "auto": the least depths at full speed
    processes  each is a device, and hosts consecutive stages: those of a planned device, or by cost

Costs are measured only if one of these decisions needs them. Stages and depths follow from the devices that the specification names, present or
not, so that a plan and its run have the same stages. Memory limits, stated or what a device has, hold for the devices that do the work: a plan's are
those of the specification, a run's are those that are present, or its processes; limits of planned devices that are not used refuse nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from attrs import evolve, frozen

from petra_graph.compiler.lower import partition
from petra_graph.compiler.placement_search import only_hosts, place
from petra_graph.compiler.plan import Plan, read_plan
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.spec_checks import check_depths, device_count, device_problems, refuse
from petra_graph.errors import NoFeasiblePlan, Problem, SpecError, shown
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.program.device_types import (
    DEVICE_TYPES,
    MACHINE_DEVICES,
    NETWORK,
    Device,
    DeviceType,
    Link,
    device_types,
    stated_link,
)
from petra_graph.program.stage_program import Partition, Placement
from petra_graph.record.run_directory import PLAN
from petra_graph.spec.model import PartitionSpec
from petra_graph.units import bounded, byte_count, plural

Devices = tuple[Device, ...]
_SAME_MEMORY = 0.12
"""A driver counts up to 8 % more or less memory than a data sheet, in other units and without what it keeps."""
_UNLISTED = "a100-40gb"
"""The type whose rates a card has that no data sheet here is of; its link is PCIe 4.0 of 16 lanes, one way: no property tells of NVLink."""


def place_network(network: MeasuredNetwork, devices: Devices) -> Placement:
    """Place a network on devices that need not be present; SpecError: stages or depths do not fit; NoFeasiblePlan: no placement keeps the limits."""
    placement, limited = _place(network, devices), _with_own_limits(devices)
    if limited == devices or _as_placed(network, placement, limited).fits(placement):
        return placement
    return _place(network, limited)


def place_on_present(network: MeasuredNetwork, present: tuple[str, ...]) -> Placement:
    """Place a network on devices that are present, as many as the specification names or one; errors as of `place_network`."""
    devices, names = planned_devices(network.spec.partition), tuple(dict.fromkeys(present))
    if list(names) == [device.name for device in devices]:
        return place_network(network, devices)
    placement = place_network(network, devices) if len(names) > 1 else _place_as_planned(network, devices)
    hosts = names if len(names) > 1 else names * len(devices)
    present_name = dict(zip([device.name for device in devices], hosts, strict=True))
    stages = tuple(evolve(stage, device=present_name[stage.device]) for stage in placement.stages)
    placement = evolve(placement, stages=stages, devices=planned_devices(network.spec.partition, names))
    check_limits(network, placement)
    return placement


def place_on_processes(network: MeasuredNetwork, processes: int) -> Placement:
    """Place a network on as many devices as a pipeline has processes, by cost if the planned devices are fewer or more.

    The process of a stage decides when its operations run, and changes no bit. Each may hold what a planned device may:
    the least of them, if they are not as many. Errors are those of `place_network`, and SpecError: there are more processes than stages.
    """
    devices = planned_devices(network.spec.partition)
    as_many = len(devices) == processes
    placement = planned = place_network(network, devices) if as_many else _place_as_planned(network, devices)
    if processes > (most := len(planned.stages)):
        message = f"{processes} processes cannot share {plural(most, 'stage')}"
        hint = f"start at most {most}, or cut the network into more stages"
        raise SpecError(Problem(message=message, hint=hint, path=("partition", "stages")))
    if not as_many:
        limit = min((device.memory_bytes for device in devices if device.memory_bytes is not None), default=None)
        first = evolve(devices[0], memory_bytes=limit)
        ranks = tuple(
            evolve(first, name=f"rank {rank}", machine=machine_of(rank, first.type)) for rank in range(processes)
        )
        stages = Partition(stages=planned.stages)
        hosted = place(_as_placed(network, planned, ranks), stages, hosts=only_hosts(stages, ranks))
        placement = evolve(hosted, kept=planned.kept, notes=planned.notes)
        check_limits(network, placement)
    rank_of = {device.name: rank for rank, device in enumerate(placement.devices)}
    return evolve(placement, stages=tuple(evolve(stage, rank=rank_of[stage.device]) for stage in placement.stages))


def _place_as_planned(network: MeasuredNetwork, devices: Devices) -> Placement:
    """Return the placement of the plan; where the planned devices, which need not be used, would break their limits, without these: open nodes then keep least."""
    try:
        return place_network(network, devices)
    except NoFeasiblePlan:
        return _place(network, tuple(evolve(device, memory_bytes=None) for device in devices), keep="least")


def check_limits(network: MeasuredNetwork, placement: Placement) -> None:
    """Check that devices keep their limits, and need no more than they have; NoFeasiblePlan: they do not."""
    limited = _with_own_limits(placement.devices)
    if any(device.memory_bytes is not None for device in limited):
        hosts = [stage.device for stage in placement.stages]
        place(_as_placed(network, placement, limited), Partition(stages=placement.stages), hosts=hosts)


def check_stages(network: MeasuredNetwork, placement: Placement) -> None:
    """Check that nodes which share a parameter are in one stage, and that each node can keep there what is listed for it; SpecError: not."""
    network.check_shared([stage.nodes for stage in placement.stages])
    listed = network.spec.method.keep
    graphs = {name for name, keeps in listed.items() if keeps == "graph"} if isinstance(listed, Mapping) else set()
    refuse(
        Problem(
            message=f"node {shown(name)} cannot keep its graph: its stage, {program.index}, has depth {program.depth}, so its "
            "parameters change before the backward",
            hint='set it to "input", or set method.allow_stored = true, which stores the parameters of the forward as well',
            path=("method", "keep", name),
        )
        for program in network.lowering.placed(placement)
        for segment in program.segments
        for name in segment.nodes
        if segment.keeps != "graph" and name in graphs
    )


def _place(network: MeasuredNetwork, devices: Devices, keep: Literal["fill", "least"] = "fill") -> Placement:
    """Place a network under the limits that devices state; `keep` is how much nodes keep, if that is open."""
    checked, given, spec = network.checked, network.checked.stages, network.spec
    number, listed = spec.partition.stages, spec.partition.devices
    open_keep = keep if spec.method.keep == "auto" else None
    by_cost = checked.schedule == "auto" or bool(open_keep) or any(one.memory_bytes is not None for one in devices)
    hosts: list[str] | None = None
    if number == 1 == len(devices) and not by_cost:
        # There is nothing to choose, and costs of a large network take longer to measure than a small run of it.
        given = partition(network.graph, [network.graph.order], [""])
        check_depths(checked.schedule, network.graph, given)
    if given is not None:
        each = isinstance(listed, tuple) and len(listed) == len(given.stages)
        hosts = [*listed] if isinstance(listed, tuple) and each else only_hosts(given, devices)
    if given is not None and hosts is not None and checked.schedule != "auto" and not by_cost:
        placement = Placement(stages=given.spread_over(hosts).stages, devices=devices, schedule=checked.schedule)
    elif given is not None:
        placement = place(network.planner_inputs(devices), given, open_keep, hosts)
    else:
        inputs, depths = network.planner_inputs(devices), checked.schedule
        least = len(depths) if isinstance(depths, tuple) else 1
        network.check_shared(number if isinstance(number, int) else least)
        placement = place(inputs, number if isinstance(number, int) else "auto", open_keep)
    check_stages(network, placement)
    return placement


def _as_placed(network: MeasuredNetwork, placement: Placement, devices: Devices) -> PlannerInputs:
    """Return inputs on some devices under which stages keep the depths of a placement, and nodes what they keep there."""
    inputs = network.planner_inputs(devices)
    return evolve(inputs, schedule=placement.schedule, kept=inputs.kept if placement.kept is None else placement.kept)


def _with_own_limits(devices: Devices) -> Devices:
    """Return devices of which each may hold what it has, if the specification states no limit."""
    return tuple(
        evolve(device, memory_bytes=device.type.memory_bytes) if device.memory_bytes is None else device
        for device in devices
    )


# --- of a saved plan, which only fixes what the specification leaves open: if the two state different things, the run is refused ---


@frozen
class SavedPlan:
    """A plan, with where it is from."""

    plan: Plan
    source: str
    """For messages."""

    @classmethod
    def read(cls, source: str) -> SavedPlan:
        """Read a plan from a JSON file, or from a run's directory; SpecError: it cannot be read, or as `read_plan`."""
        path, hint = Path(source), ""
        if path.is_dir():
            path = path / PLAN
            hint = "a run has a plan if it was given one: `petra-graph plan SPEC --json --output FILE`"
        try:
            return cls(read_plan(path.read_bytes(), str(path)), str(path))
        except OSError as error:
            raise SpecError(f"cannot read the plan {path}: {error.strerror or error}", hint) from None

    def placement(self, network: MeasuredNetwork, present: Sequence[str], processes: int) -> Placement:
        """Return the plan's stages and depths on the devices of these names, which are present; of several processes of a pipeline each one's.

        SpecError: the plan is of something else, by the first difference; NoFeasiblePlan: its stages do not keep the limits of these devices.
        """
        plan, spec, checked = self.plan, network.spec, network.checked
        named = [device.name for device in plan.devices]
        # A process is a device, by the plan's names.
        devices = planned_devices(spec.partition, tuple(named if processes > 1 else dict.fromkeys(present)))
        if processes > 1:
            devices = tuple(evolve(one, machine=machine_of(rank, one.type)) for rank, one in enumerate(devices))
        devices = tuple(device for device in devices if device.name in named)

        cut, stages = [[*stage.nodes] for stage in plan.stages], checked.stages
        self._compare("method.name", plan.method, checked.method.name)
        self._compare("method.accumulation", plan.accumulation, spec.method.accumulation)
        self._compare("data.batch", plan.micro_batch, spec.data.batch)
        self._compare("partition.replicas", plan.replicas, spec.partition.replicas)
        if stages is not None:
            self._compare("partition.stages", cut, [[*stage.nodes] for stage in stages.stages])
        elif isinstance(spec.partition.stages, int):
            self._compare("partition.stages", len(cut), spec.partition.stages)
        if checked.schedule != "auto":
            self._compare("method.schedule", plan.schedule, checked.schedule)
        self._compare("nodes", sorted(node.name for node in plan.nodes), sorted(network.graph.nodes))
        types = {one.name: one.type.name for one in devices}
        self._compare("devices", {one.name: one.type for one in plan.devices}, types)
        if processes > 1:
            self._compare("processes", len(plan.devices), processes)
        try:
            stages = partition(network.graph, cut, [""])
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
        own = {node.name: node for node in network.described(network.lowering.placed(placement))}
        for node in plan.nodes:
            for key in ("kind", "block", "parameters", "inputs", "outputs", "keeps"):
                here = getattr(own[node.name], key)
                self._compare(f"node {shown(node.name)}: {key}", getattr(node, key), here)
        check_stages(network, placement)
        check_limits(network, placement)
        return placement

    def _compare(self, key: str, planned: Any, here: Any) -> None:
        if planned != here:
            came, wanted = (bounded(shown(one), 60) for one in (planned, here))
            hint = "`petra-graph plan SPEC --json --output FILE`, with the --set of the run, makes a new one"
            raise SpecError(f"{self.source} is a plan of {key} = {came}, not {wanted}", hint)


# --- the devices: those that are present for a run, or those that a plan assumes ---


def present_devices(partition: PartitionSpec, processes: int = 1) -> tuple[str, ...]:
    """Return the names of a run's devices, in order; of several processes each one's, by rank; SpecError: they are not here, or do not match.

    A number means the first CUDA devices, or the CPU where torch sees none. On CUDA each process has the device of its local rank.
    """
    devices, available, path = partition.devices, torch.cuda.device_count(), ("partition", "devices")
    if processes > 1:
        kinds = {"cuda" if available else "cpu"}
        if not isinstance(devices, int):
            kinds = {name.partition(":")[0] for name in devices}
        if len(kinds) > 1 or (isinstance(devices, int) and devices not in {1, processes}):
            message = (
                f"partition.devices is {shown(devices)}, but each of {processes} processes is a device, all of one kind"
            )
            raise SpecError(Problem(message=message, hint='leave it out, or set ["cpu"] or ["cuda"]', path=path))
        return tuple("cpu" if kinds == {"cpu"} else f"cuda:{rank}" for rank in range(processes))
    if isinstance(devices, int):
        if available == 0:
            return ("cpu",)
        devices = tuple(f"cuda:{index}" for index in range(devices))
    here = [f"cuda:{index}" for index in range(available)]
    absent = [name for name in devices if name != "cpu" and name not in here]
    hint = f"allowed: {', '.join(['cpu', *here])}"
    refuse(Problem(message=f"device {shown(name)} does not exist here", hint=hint, path=path) for name in absent)
    return tuple(devices)


def planned_devices(partition: PartitionSpec, names: tuple[str, ...] | None = None) -> tuple[Device, ...]:
    """Return present devices of these names, or those of the specification, with types, limits and links; no limit is above what a device has."""
    refuse(device_problems(partition))
    count, known = device_count(partition) if names is None else len(names), device_types(partition)
    each = [(one,) * count if isinstance(one, str) else one or () for one in (partition.device_type, partition.memory)]
    types = [known[name] for name in each[0]][:count]
    limits: Sequence[int | None] = [byte_count(size) for size in each[1]] or [None] * count
    if any(not name.startswith(kind.kind) for name, kind in zip(names or (), types, strict=False)):
        # The present devices are of another kind than the planned ones, whose memory is not theirs.
        types, limits = [], [None] * count
    assigned = names or (() if isinstance(partition.devices, int) else tuple(dict.fromkeys(partition.devices)))
    if not assigned:
        kinds = [device.kind for device in types] or ["cuda" if torch.cuda.is_available() else "cpu"] * count
        assigned = ("cpu",) if kinds == ["cpu"] else tuple(f"{kind}:{index}" for index, kind in enumerate(kinds))
    types = types or [_type_here(name) for name in assigned]
    return tuple(
        Device(
            name=name,
            type=device,
            memory_bytes=None if limit is None else min(limit, device.memory_bytes or limit),
            link=stated_link(partition, device.link),
            machine=machine_of(index, device) if names is None else 0,
            network=stated_link(partition, device.link.slower(NETWORK)),
        )
        for index, (name, device, limit) in enumerate(zip(assigned, types, limits[:count], strict=True))
    )


def machine_of(index: int, device: DeviceType) -> int:
    """Return the machine, counted from 0, of the device at a place in the pipeline; machines are filled in order."""
    return index // MACHINE_DEVICES[device.kind]


def _type_here(name: str) -> DeviceType:
    """Return the type of a device of this machine; where it has none of that name, of its first one, with a guess."""
    kind, _, index = name.partition(":")
    here = torch.cuda.device_count() if kind == "cuda" and torch.cuda.is_available() else 0
    if not here:
        guess = f"{name} is taken to be a CPU core, since no GPU is here" if kind == "cuda" else ""
        return evolve(DEVICE_TYPES["cpu"], guess=guess)
    place = int(index or 0)
    found = gpu_type(torch.cuda.get_device_properties(place if place < here else 0))
    if place >= here and not found.guess:
        found = evolve(found, guess=f"{name} is not here, and is taken to be {found.name} as cuda:0 is")
    return found


def gpu_type(properties: Any) -> DeviceType:
    """Return a GPU's type by `torch.cuda.get_device_properties`, with the GPU's own memory.

    One whose model, multiprocessors and memory are those of a data sheet in the table has that sheet's rates. Any other one has those of
    one card, and `guess` says so: stages are cut alike on alike devices, whatever their rates.
    """
    words = re.findall(r"[a-z0-9]+", properties.name.lower())
    models = {*words, *(first + second for first, second in pairwise(words))}
    memory, count = int(properties.total_memory), int(properties.multi_processor_count)
    for device in DEVICE_TYPES.values():
        alike = device.name.partition("-")[0] in models and device.multiprocessors == count
        if alike and device.memory_bytes is not None and abs(memory / device.memory_bytes - 1) <= _SAME_MEMORY:
            return evolve(device, memory_bytes=memory)

    guess = f"{properties.name} has no data sheet here, and is planned with the rates of {_UNLISTED}"
    card, link = DEVICE_TYPES[_UNLISTED], Link(latency_seconds=1e-5, bytes_per_second=32e9)
    return evolve(card, name=properties.name, memory_bytes=memory, link=link, multiprocessors=count, guess=guess)

"""The place step: the stages, their devices and their depths, decided where the specification leaves them open.

    stages     "per-block", or listed: as they are; a number: cut by cost
    devices    as many as stages: one each; fewer: by cost, or all stages on the only device where memory has no limit
    schedule   as named; "auto": the least depths at full speed
    processes  each is a device, and hosts consecutive stages: those of a planned device, or by cost

Costs are measured only where one of these decisions needs them. Stages, places and depths follow from the devices that
the specification names, present or not, so that a plan and its run, on whatever runtime, have the same stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from attrs import evolve, frozen

from petra_graph.compiler.place import cut_and_place, place_stages, resolved_schedule, within_memory
from petra_graph.compiler.spec_checks import check_processes
from petra_graph.errors import NoFeasiblePlan, PetraGraphError, shown
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.planning.checked import with_method
from petra_graph.planning.devices import planned_devices
from petra_graph.planning.measure import MeasuredNetwork
from petra_graph.program.devices import Device
from petra_graph.program.placement import Partition
from petra_graph.program.placement import Placement
from petra_graph.spec.model import Spec

_TIMES_DEVICES = (2, 4)
_PARTS_OF_BATCH = (2, 4, 8)


def place(network: MeasuredNetwork, devices: tuple[Device, ...]) -> Placement:
    """Place a network; where no placement fits, name changes of the specification after which it fits.

    Args:
        network: the network.
        devices: those that the specification names, which need not be present.

    Raises:
        SpecError: there are fewer nodes than stages, or depths do not fit the stages.
        NoFeasiblePlan: no placement keeps the devices' memory limits.
    """
    try:
        return _place(network, devices)
    except NoFeasiblePlan as error:
        hint = _working_remedies(network)
        raise NoFeasiblePlan([evolve(problem, hint=hint) for problem in error.problems]) from None


def place_on_present(placement: Placement, network: MeasuredNetwork, present: tuple[str, ...]) -> Placement:
    """Return the same stages on devices that are present: each planned device in its order, or all on the only one."""
    names = tuple(dict.fromkeys(present))
    planned = [device.name for device in placement.devices]
    if list(names) == planned:
        return placement
    present_name = dict(zip(planned, names if len(names) > 1 else names * len(planned), strict=True))
    stages = tuple(evolve(stage, device=present_name[stage.device]) for stage in placement.stages)
    return evolve(placement, stages=stages, devices=planned_devices(network.spec.partition, names))


def place_on_processes(placement: Placement, network: MeasuredNetwork, processes: int) -> Placement:
    """Return the same stages on as many devices as processes, by cost where the planned devices are fewer or more.

    The process of a stage decides when its operations run, and changes no bit.

    Raises:
        SpecError: there are more processes than stages.
    """
    stages, devices = placement.stages, placement.devices
    check_processes(len(stages), processes)
    if not len({stage.device for stage in stages}) == processes == len(devices):
        ranks = tuple(evolve(devices[0], name=f"rank {rank}", memory_bytes=None) for rank in range(processes))
        inputs = evolve(network.planner_inputs(ranks), schedule=placement.schedule)
        placement = place_stages(inputs, Partition(stages=stages), network.spec.partition.strategy)
    rank_of = {device.name: rank for rank, device in enumerate(placement.devices)}
    return evolve(placement, stages=tuple(evolve(stage, rank=rank_of[stage.device]) for stage in placement.stages))


def _place(network: MeasuredNetwork, devices: tuple[Device, ...]) -> Placement:
    partition, stages = network.spec.partition, network.stages
    if stages is None:
        assert isinstance(partition.stages, int)
        return cut_and_place(network.planner_inputs(devices), partition.stages, partition.strategy)
    count = len(stages.stages)
    limited = any(device.memory_bytes is not None for device in devices)
    if isinstance(partition.devices, tuple) and len(partition.devices) == count:
        stages = stages.spread_over(partition.devices)
        if limited:
            return within_memory(network.planner_inputs(devices), stages)
    elif limited or 1 < len(devices) < count:
        return place_stages(network.planner_inputs(devices), stages, partition.strategy)
    else:
        stages = stages.spread_over([device.name for device in devices[:count]])
    schedule = network.schedule
    if schedule == "auto":
        schedule = resolved_schedule(network.planner_inputs(devices), stages)
    return Placement(stages=stages.stages, devices=devices, schedule=schedule)


@frozen(kw_only=True)
class _Remedy:
    """A change of the specification, in its own keys, so that a reader can type it."""

    text: str
    """The keys to set."""
    spec: Spec
    graph: NodeGraph


def _working_remedies(network: MeasuredNetwork) -> str:
    """Return a hint: the changes after which the network fits, each placed before it is named, or those tried in vain."""
    graph, spec = network.graph, network.spec
    families: tuple[Sequence[_Remedy], ...] = (
        list(_more_devices(graph, spec)),
        list(_smaller_batches(graph, spec)),
        *([remedy] for remedy in _other_keys(graph, spec)),
        list(_fewer_anchors(graph, spec)),
    )
    # Of a family, the least change.
    found = [next((remedy.text for remedy in family if _fits(network, remedy)), None) for family in families]
    working = [text for text in found if text is not None]
    if working:
        return f"it fits with {'; or '.join(working)}"
    return f"nothing tried helps: {'; '.join(remedy.text for remedy in chain(*families))}"


def _fits(network: MeasuredNetwork, remedy: _Remedy) -> bool:
    try:
        _place(network.variant(remedy.spec, remedy.graph), planned_devices(remedy.spec.partition))
    except PetraGraphError:
        return False
    return True


def _more_devices(graph: NodeGraph, spec: Spec) -> Iterator[_Remedy]:
    partition = spec.partition
    lists = isinstance(partition.device_type, tuple) or isinstance(partition.memory, tuple)
    most = len(partition.stages) if isinstance(partition.stages, tuple) else len(graph.nodes)
    if lists or not isinstance(partition.devices, int):
        return
    for times in _TIMES_DEVICES:
        devices = times * partition.devices
        if devices > most:
            return
        changes = {"partition.devices": devices}
        if isinstance(partition.stages, int) and partition.stages < devices:
            changes["partition.stages"] = devices
        yield _with_keys(graph, spec, changes)


def _smaller_batches(graph: NodeGraph, spec: Spec) -> Iterator[_Remedy]:
    for parts in _PARTS_OF_BATCH:
        if spec.data.batch >= parts:
            yield _with_keys(graph, spec, {"data.batch": spec.data.batch // parts})


def _other_keys(graph: NodeGraph, spec: Spec) -> Iterator[_Remedy]:
    method = spec.method
    delayed = method.name in {"petra", "dsp", "pipedream", "delayed-reconstructed"}
    for schedule in ("1f1b", "auto"):
        if delayed and method.schedule != schedule:
            yield _with_keys(graph, spec, {"method.schedule": schedule})
    if method.name != "petra" and any(node.kind == "reversible" for node in graph.nodes.values()):
        petra = evolve(spec, method=with_method(method, "petra", "1f1b"))
        yield _with_keys(graph, petra, {"method.name": "petra", "method.schedule": "1f1b"})
    if spec.precision.buffer_dtype == "as-streams":
        yield _with_keys(graph, spec, {"precision.buffer_dtype": "bfloat16"})
    if spec.precision.buffer_device == "stage":
        yield _with_keys(graph, spec, {"precision.buffer_device": "cpu"})


def _with_keys(graph: NodeGraph, spec: Spec, changes: Mapping[str, Any]) -> _Remedy:
    """Return the remedy that sets keys of the specification's tables."""
    for key, value in changes.items():
        table, _, name = key.partition(".")
        spec = evolve(spec, **{table: evolve(getattr(spec, table), **{name: value})})
    text = " and ".join(f"{key} = {shown(value)}" for key, value in changes.items())
    return _Remedy(text=text, spec=spec, graph=graph)


def _fewer_anchors(graph: NodeGraph, spec: Spec) -> Iterator[_Remedy]:
    """Yield the network without the nodes that could reconstruct and are marked to store."""
    anchors = {
        node.name
        for node in graph.nodes.values()
        if node.kind == "buffered" and node.declaration is not None and node.declaration.kind == "reversible"
    }
    if anchors:
        nodes = {
            name: evolve(node, kind="reversible") if name in anchors else node for name, node in graph.nodes.items()
        }
        text = f'kind = "reversible" for {", ".join(sorted(anchors))}'
        yield _Remedy(text=text, spec=spec, graph=NodeGraph(nodes=nodes))

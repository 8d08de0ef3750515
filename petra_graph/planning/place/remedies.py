"""The remedies for a network that does not fit: changes of the specification, each placed before it is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from attrs import asdict, evolve, frozen

from petra_graph.errors import shown
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.planning.check.checked_spec import with_method
from petra_graph.planning.network.measure_network import MeasuredNetwork
from petra_graph.planning.place.kept_by_node import kept_by_kind
from petra_graph.program.method import METHODS, Method
from petra_graph.spec.model import Spec
from petra_graph.units import listed

_TIMES_DEVICES = (2, 4)
_PARTS_OF_BATCH = (2, 4, 8)


@frozen(kw_only=True)
class _Remedy:
    """A change of the specification, in its own keys, so that a reader can type it."""

    text: str
    """The keys to set."""
    spec: Spec
    graph: NodeGraph


def working_remedies(
    network: MeasuredNetwork, fits: Callable[[MeasuredNetwork], bool], *, more_devices: bool = True
) -> str:
    """Return a hint: the changes after which the network fits, or those that were tried and do not suffice.

    Args:
        network: it does not fit.
        fits: places a variant.
        more_devices: the specification, not the run, decides how many devices there are.
    """
    graph, spec = network.graph, network.spec
    families: tuple[Sequence[_Remedy], ...] = (
        list(_more_devices(graph, spec)) if more_devices else [],
        list(_smaller_batches(graph, spec)),
        *([remedy] for remedy in chain(_less_kept(graph, spec, network.method), _other_keys(graph, spec))),
        list(_fewer_anchors(graph, spec)),
    )
    # Of a family, the least change.
    found = [
        next((remedy.text for remedy in family if fits(network.variant(remedy.spec, remedy.graph))), None)
        for family in families
    ]
    working = [text for text in found if text is not None]
    if working:
        return f"it fits with {'; or '.join(working)}"
    return f"nothing tried helps: {'; '.join(remedy.text for remedy in chain(*families))}"


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


def _less_kept(graph: NodeGraph, spec: Spec, method: Method) -> Iterator[_Remedy]:
    """Yield the change of `keep` after which nodes keep least.

    For `keep = "auto"`, nodes that keep least are placed: it begins with these, and takes longer for what it finds beyond them.
    """
    table, least = spec.method, kept_by_kind(graph)
    own = kept_by_kind(graph, method.reversible, method.buffered)
    if table.keep is not None and own == least:
        without = evolve(table, keep=None, allow_stored=False)
        yield _Remedy(text="method.keep left out", spec=evolve(spec, method=without), graph=graph)
    elif table.keep != "auto" and own != least and table.last_stage == "as-others":
        yield _Remedy(text='method.keep = "auto"', spec=evolve(spec, method=evolve(table, keep=least)), graph=graph)


def _other_keys(graph: NodeGraph, spec: Spec) -> Iterator[_Remedy]:
    method = spec.method
    for schedule in ("1f1b", "auto"):
        if "auto" in METHODS[method.name].schedules and method.schedule != schedule:
            yield _with_keys(graph, spec, {"method.schedule": schedule})
    if method.name != "petra" and any(node.kind == "reversible" for node in graph.nodes.values()):
        petra, before = asdict(with_method(method, "petra", "1f1b"), recurse=False), asdict(method, recurse=False)
        dropped = [
            f"method.{key}" for key, value in petra.items() if value != before[key] and key not in ("name", "schedule")
        ]
        remedy = _with_keys(graph, spec, {f"method.{key}": petra[key] for key in ("name", "schedule")})
        text = f"{remedy.text}{f', without {listed(dropped)}' if dropped else ''}"
        yield evolve(remedy, text=text, spec=evolve(spec, method=with_method(method, "petra", "1f1b")))
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

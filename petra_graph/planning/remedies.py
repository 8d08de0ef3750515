"""The remedies for a network that does not fit: each is planned before it is named.

A remedy is a change of the specification, in its own keys, so that a reader can type it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from attrs import evolve, frozen

from petra_graph.errors import PetraGraphError
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.planning.variants import with_method
from petra_graph.spec.model import DataSpec, Spec

_TIMES_DEVICES = (2, 4)
_PARTS_OF_BATCH = (2, 4, 8)


@frozen(kw_only=True)
class Remedy:
    """A change of the specification."""

    text: str
    """The keys to set."""
    spec: Spec
    graph: NodeGraph


def working_remedies(graph: NodeGraph, spec: Spec, fits: Callable[[NodeGraph, Spec], bool]) -> str:
    """Return a hint: the changes after which the network fits, or those that were tried in vain.

    Args:
        graph: the network.
        spec: its specification.
        fits: places a variant of both.
    """
    families: tuple[Sequence[Remedy], ...] = (
        list(_more_devices(graph, spec)),
        list(_smaller_batches(graph, spec)),
        *([remedy] for remedy in _other_keys(graph, spec)),
        list(_fewer_anchors(graph, spec)),
    )
    found = [
        next((remedy.text for remedy in family if _tried(fits, remedy)), None) for family in families
    ]  # of a family, the least change
    working = [text for text in found if text is not None]
    if working:
        return f"it fits with {'; or '.join(working)}"
    return f"nothing tried helps: {'; '.join(remedy.text for remedy in chain(*families))}"


def _tried(fits: Callable[[NodeGraph, Spec], bool], remedy: Remedy) -> bool:
    try:
        return fits(remedy.graph, remedy.spec)
    except PetraGraphError:
        return False


def _more_devices(graph: NodeGraph, spec: Spec) -> Iterator[Remedy]:
    partition = spec.partition
    lists = isinstance(partition.device_type, tuple) or isinstance(partition.memory, tuple)
    most = len(partition.stages) if isinstance(partition.stages, tuple) else len(graph.nodes)
    if lists or not isinstance(partition.devices, int):
        return
    for times in _TIMES_DEVICES:
        devices = times * partition.devices
        if devices > most:
            return
        changed: dict[str, Any] = {"devices": devices}
        if isinstance(partition.stages, int) and partition.stages < devices:
            changed["stages"] = devices
        text = " and ".join(f"partition.{key} = {value}" for key, value in changed.items())
        yield Remedy(text=text, spec=evolve(spec, partition=evolve(partition, **changed)), graph=graph)


def _smaller_batches(graph: NodeGraph, spec: Spec) -> Iterator[Remedy]:
    for parts in _PARTS_OF_BATCH:
        if spec.data.batch >= parts:
            data: DataSpec = evolve(spec.data, batch=spec.data.batch // parts)
            yield Remedy(text=f"data.batch = {data.batch}", spec=evolve(spec, data=data), graph=graph)


def _other_keys(graph: NodeGraph, spec: Spec) -> Iterator[Remedy]:
    method, precision = spec.method, spec.precision
    delayed = method.name in {"petra", "dsp", "pipedream", "delayed-reconstructed"}
    for schedule in ("1f1b", "auto"):
        if delayed and method.schedule != schedule:
            changed = evolve(spec, method=evolve(method, schedule=schedule))
            yield Remedy(text=f'method.schedule = "{schedule}"', spec=changed, graph=graph)
    if method.name != "petra" and any(node.kind == "reversible" for node in graph.nodes.values()):
        petra = with_method(method, "petra", "1f1b")
        text = 'method.name = "petra" and method.schedule = "1f1b"'
        yield Remedy(text=text, spec=evolve(spec, method=petra), graph=graph)
    if precision.buffer_dtype == "as-streams":
        changed = evolve(spec, precision=evolve(precision, buffer_dtype="bfloat16"))
        yield Remedy(text='precision.buffer_dtype = "bfloat16"', spec=changed, graph=graph)
    if precision.buffer_device == "stage":
        changed = evolve(spec, precision=evolve(precision, buffer_device="cpu"))
        yield Remedy(text='precision.buffer_device = "cpu"', spec=changed, graph=graph)


def _fewer_anchors(graph: NodeGraph, spec: Spec) -> Iterator[Remedy]:
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
        yield Remedy(text=text, spec=spec, graph=NodeGraph(nodes=nodes))

"""The resolved specification: every decision of a preparation written down, so that running it repeats the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import torch

from petra_graph.errors import Problem, SpecError, shown
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.planning.checked import CheckedSpec, ConfiguredPlugin
from petra_graph.planning.devices import device_count
from petra_graph.registry.contracts import DataFacts
from petra_graph.runtime.control.store import RunStore
from petra_graph.spec.model import GraphSpec, InputSpec, NodeSpec, Spec
from petra_graph.spec.schema import as_mapping
from petra_graph.training.prepare import Prepared

_AGREEMENT_SECONDS = 300.0


def resolved(prepared: Prepared) -> Spec:
    """Return the specification with nodes written out, stages cut, devices named and every option's value."""
    spec, network, checked = prepared.spec, prepared.network, prepared.checked
    method = network.method
    devices = tuple(program.device for program in prepared.programs)
    lists_fit = device_count(spec.partition) == len(set(devices))
    return attrs.evolve(
        spec,
        architecture=None,
        graph=written_out(network.graph, prepared.facts),
        method=attrs.evolve(
            spec.method,
            schedule=prepared.placement.schedule,
            reversible=method.reversible,
            buffered=method.buffered,
            backward=method.backward,
            flush=method.flush,
        ),
        partition=attrs.evolve(
            spec.partition,
            stages=tuple(program.nodes for program in prepared.programs),
            devices=devices,  # one for each stage, so that nothing is left to be spread
            # Types and limits of single devices are left out where the run has another number of devices.
            device_type=spec.partition.device_type if lists_fit else None,
            memory=spec.partition.memory if lists_fit else None,
        ),
        optimizer=_with_options(spec.optimizer, checked.optimizer),
        lr_schedule=_with_options(spec.lr_schedule, checked.lr_schedule),
        loss=_with_options(spec.loss, checked.loss),
        data=_with_options(spec.data, checked.data),
    )


def expanded(checked: CheckedSpec) -> Spec:
    """Return the specification with its architecture written out as nodes, and nothing else decided."""
    return attrs.evolve(checked.spec, architecture=None, graph=written_out(checked.graph, checked.facts))


def written_out(graph: NodeGraph, facts: DataFacts) -> GraphSpec:
    """Return the network node by node."""
    return GraphSpec(
        input=InputSpec(shape=facts.shape, dtype=facts.dtype),
        node=tuple(
            NodeSpec(
                name=node.name, block=node.block, kind=node.kind, inputs=node.inputs, options=_options(node.options)
            )
            for node in graph.nodes.values()
        ),
    )


def _with_options(table: Any, plugin: ConfiguredPlugin) -> Any:
    return attrs.evolve(table, options=_options(plugin.options))


def _options(options: Any) -> dict[str, Any]:
    """Return options as a table; None is left out, since it is the default."""
    return {key: value for key, value in attrs.asdict(options).items() if value is not None}


def agree(store: RunStore, rank: int, prepared: Prepared) -> None:
    """Compare the run of this process with that of rank 0.

    Raises:
        SpecError: another specification, other data, or another version of torch.
    """
    own = _decisive(prepared)
    if rank == 0:
        store.set("run", own)
        return
    first = store.wait("run", _AGREEMENT_SECONDS, "rank 0 has not published its run")
    differences = [
        f"{name}: {own.get(name, 'nothing')} here, {first.get(name, 'nothing')} on rank 0"
        for name in dict.fromkeys([*own, *first])
        if own.get(name) != first.get(name)
    ]
    if differences:
        message, hint = (
            f"rank {rank} and rank 0 run different things: ",
            "start the same specification, overrides and versions on every machine",
        )
        raise SpecError([Problem(message=message + difference, hint=hint) for difference in differences[:3]])


def _decisive(prepared: Prepared) -> Mapping[str, str]:
    """Return everything that the bits depend on, as text by name; the folder of the results may differ."""
    spec = resolved(prepared)
    return {
        "torch": torch.__version__,
        "the process of each stage": str(prepared.ranks),
        "samples": f"{len(prepared.data.train)} + {len(prepared.data.test)}",
        **dict(_values(as_mapping(attrs.evolve(spec, run=attrs.evolve(spec.run, directory="runs"))))),
    }


def _values(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of nested tables with their values."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = dict(enumerate(value, start=1))
    if not isinstance(value, dict):
        yield name, shown(value)
        return
    for key, item in value.items():
        yield from _values(item, f"{name}.{key}" if name else key)

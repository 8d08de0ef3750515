"""The resolved specification: everything that was decided, written down, so that running it repeats the run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import attrs

from petra_graph.graph.node_graph import NodeGraph
from petra_graph.planning.check import Checked, Chosen
from petra_graph.registry.contracts import DataFacts
from petra_graph.spec.model import GraphSpec, InputSpec, NodeSpec, PartitionSpec, Spec
from petra_graph.training.prepare import Prepared


def resolved(prepared: Prepared) -> Spec:
    """Return the specification with nodes written out, stages cut, devices named and every option's value."""
    spec, compiled, checked = prepared.spec, prepared.compiled, prepared.checked
    stages = compiled.partition.stages
    return attrs.evolve(
        spec,
        architecture=None,
        graph=written_out(compiled.graph, prepared.facts),
        method=attrs.evolve(
            spec.method,
            schedule=compiled.schedule,
            reversible=compiled.method.reversible,
            buffered=compiled.method.buffered,
            backward=compiled.method.backward,
            flush=compiled.method.flush,
        ),
        partition=attrs.evolve(
            spec.partition,
            stages=tuple(stage.nodes for stage in stages),
            devices=tuple(stage.device for stage in stages),  # as many as stages: nothing is left to be spread
            **_of_planned_devices(spec.partition, {stage.device for stage in stages}),
        ),
        optimizer=_with_options(spec.optimizer, checked.optimizer),
        lr_schedule=_with_options(spec.lr_schedule, checked.lr_schedule),
        loss=_with_options(spec.loss, checked.loss),
        data=_with_options(spec.data, checked.data),
    )


def _of_planned_devices(asked: PartitionSpec, used: Collection[str]) -> dict[str, Any]:
    """Return what was said of devices one by one, left out where the run has others than it was said of."""
    count = asked.devices if isinstance(asked.devices, int) else len(set(asked.devices))
    return {} if count == len(used) else {"device_type": None, "memory": None}


def expanded(checked: Checked) -> Spec:
    """Return the specification with nothing decided but its nodes written out: what an architecture stands for."""
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


def _with_options(table: Any, chosen: Chosen) -> Any:
    return attrs.evolve(table, options=_options(chosen.options))


def _options(options: Any) -> dict[str, Any]:
    """Write an options value as a table; what is None is left out, since it is the default."""
    return {key: value for key, value in attrs.asdict(options).items() if value is not None}

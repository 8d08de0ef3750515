"""What a checked specification's nodes cost, without the data set's files."""

from __future__ import annotations

from collections.abc import Hashable

from petra_graph.executor.numerics import Normalisation
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.measure.costs import Conditions, measure_costs
from petra_graph.planning.check import Checked
from petra_graph.program.costs import CostTable
from petra_graph.registry.building import built, load
from petra_graph.spec.model import Spec


class Costs:
    """What nodes of a checked specification cost, each measured once for what it depends on."""

    def __init__(self, checked: Checked) -> None:
        self._checked = checked
        self._known: dict[Hashable, CostTable] = {}

    def __call__(self, graph: NodeGraph, spec: Spec) -> CostTable:
        """Return the costs of a variant of the specification's network, at the micro-batch and precision of `spec`.

        Raises:
            SpecError: a block can be run neither without values nor on the CPU.
            PluginError: code cannot be imported.
        """
        key = (tuple((node.name, node.kind) for node in graph.nodes.values()), spec.data.batch, spec.precision)
        if key not in self._known:
            self._known[key] = costs_of(self._checked, graph, spec)
        return self._known[key]


def costs_of(checked: Checked, graph: NodeGraph, spec: Spec) -> CostTable:
    """Measure what nodes cost.

    Args:
        checked: whose plugins and data set.
        graph: its network, or a variant of it.
        spec: whose micro-batch, precision and clipping.
    """
    facts = checked.facts
    return measure_costs(
        graph,
        Conditions(
            batch=spec.data.batch,
            sample=facts.shape,
            sample_dtype=facts.dtype,
            normalisation=Normalisation.of(facts),
            precision=spec.precision,
            loss=built(checked.loss.plugin, checked.loss.options),
            build_optimizer=load(checked.optimizer.plugin),
            optimizer_options=checked.optimizer.options,
            clip=spec.optimizer.clip,
        ),
    )

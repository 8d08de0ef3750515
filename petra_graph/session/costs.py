"""What a checked specification's nodes cost, without the data set's files."""

from __future__ import annotations

from petra_graph.graph.stage_graph import StageGraph
from petra_graph.measure.costs import Conditions, measure_costs
from petra_graph.program.costs import CostTable
from petra_graph.registry.building import built, load
from petra_graph.session.assemble import normalisation
from petra_graph.session.validate import Checked


def costs_of(checked: Checked, graph: StageGraph | None = None) -> CostTable:
    """Measure what nodes cost, at the specification's micro-batch, precision and optimizer.

    Args:
        checked: the specification.
        graph: another network than its own.

    Raises:
        SpecError: a block can be run neither without values nor on the CPU.
        PluginError: code cannot be imported.
    """
    spec, facts = checked.spec, checked.facts
    return measure_costs(
        graph or checked.graph,
        Conditions(
            batch=spec.data.batch,
            sample=facts.shape,
            sample_dtype=facts.dtype,
            normalisation=normalisation(facts),
            precision=spec.precision,
            loss=built(checked.loss.plugin, checked.loss.options),
            build_optimizer=load(checked.optimizer.plugin),
            optimizer_options=checked.optimizer.options,
            clip=spec.optimizer.clip,
        ),
    )

"""From a placement to a plan: its memory and its speed."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from petra_graph.compiler.memory_and_time import Prediction
from petra_graph.compiler.plan_as_json import document
from petra_graph.kinds.optimizer import asks_for_delay
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.planning.advice.plan_assumptions import assumptions
from petra_graph.planning.advice.plan_warnings import warnings
from petra_graph.planning.network.measure_network import MeasuredNetwork
from petra_graph.planning.network.shared_across_stages import counted_once
from petra_graph.planning.place.staleness_bound import consequences
from petra_graph.planning.predict.plan_certainty import certainty
from petra_graph.program.placement import Placement
from petra_graph.program.plan_document import Document
from petra_graph.spec.model import Spec


@frozen(kw_only=True)
class Plan:
    """A network with the prediction of its placement."""

    network: MeasuredNetwork
    prediction: Prediction

    @property
    def spec(self) -> Spec:
        return self.network.spec

    @uncompiled()
    def document(self, *, with_timeline: bool, with_warnings: bool = True, with_other_cuts: bool = True) -> Document:
        """Return the plan as JSON.

        Args:
            with_timeline: list the first operations one by one.
            with_warnings: name keys to change, for which other plans are tried.
            with_other_cuts: say whether another cut may be faster within the spread of a profile, for which one is searched for.
        """
        sure = certainty(self.prediction, self.network, with_other_cuts=with_other_cuts)
        return document(
            self.spec,
            self.prediction,
            self.network.shapes,
            trained=counted_once(self.network.shapes, [stage.nodes for stage in self.prediction.placement.stages])[1],
            micro_batches=self.network.micro_batches,
            delay_aware=self._delay_aware(),
            decided=list(consequences(self.network)),
            assumptions=[
                *self.prediction.placement.notes,
                *assumptions(self.prediction, self.spec),
                *sure.sentences(),
            ],
            certainty=sure.document(),
            warnings=warnings(self.prediction, self.network) if with_warnings else (),
            with_timeline=with_timeline,
        )

    def _delay_aware(self) -> Iterator[str]:
        """Yield the optimizer where it asks for its stage's facts, or its groups have the delay."""
        optimizer = self.network.optimizer
        if asks_for_delay(optimizer.plugin, optimizer.options):
            yield str(optimizer.plugin)


def predict(network: MeasuredNetwork, placement: Placement, *, overlap: bool = False) -> Plan:
    """Predict a placement: a plan's, or a run's.

    Args:
        overlap: devices run forwards and backwards on two streams.

    Raises:
        SpecError: the profile does not belong to the specification, or a block cannot be run.
    """
    inputs = network.planner_inputs(placement.devices, overlap=overlap)
    return Plan(network=network, prediction=Prediction(inputs=inputs, placement=placement))

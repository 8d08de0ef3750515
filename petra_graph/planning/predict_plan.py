"""The predict step: memory and speed of a placement, as a plan that people and programs read."""

from __future__ import annotations

from attrs import frozen

from petra_graph.compiler.prediction import Prediction, document
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.planning.plan_advice import assumptions, throughput_range, warnings
from petra_graph.planning.shared_across_stages import count_parameters
from petra_graph.plugins.optimizer import asks_for_delay
from petra_graph.program.placement import Placement
from petra_graph.program.plan_document import Document
from petra_graph.spec.model import Spec


@frozen
class Baseline:
    """What speed-ups are over."""

    samples_per_second: float
    name: str


@frozen(kw_only=True)
class Plan:
    """A network with the prediction of its placement."""

    network: MeasuredNetwork
    prediction: Prediction

    @property
    def spec(self) -> Spec:
        return self.network.spec

    @property
    def fits(self) -> bool | None:
        """Whether every device has the memory that it needs; None if the memory of one is not known."""
        spare = _spare_bytes(self.prediction)
        return None if spare is None else spare >= 0

    @property
    def samples_per_second(self) -> float:
        """Of all replicas."""
        return self.prediction.timing.samples_per_second(self.spec.data.batch, self.spec.partition.replicas)

    @property
    def peak_bytes(self) -> int:
        """What the fullest device holds."""
        return max(held.total for held in self.prediction.device_memory.values())

    @uncompiled()
    def document(
        self, *, with_timeline: bool, over: Baseline | None = None, better: tuple[str, int] | None = None
    ) -> Document:
        """Return the plan as JSON.

        Args:
            with_timeline: list the first operations one by one.
            over: what the speed-up is over; None: it is not known.
            better: a better use of the devices, which is the first warning, or "", and how many were looked at.
        """
        optimizer = self.network.checked.optimizer
        slowest, fastest = throughput_range(self.prediction, self.spec)
        return document(
            self.spec,
            self.prediction,
            self.network.shapes,
            trained=count_parameters(self.network.shapes, [stage.nodes for stage in self.prediction.placement.stages])[
                1
            ],
            micro_batches=self.network.micro_batches,
            delay_aware=[str(optimizer.plugin)] * asks_for_delay(optimizer.plugin, optimizer.options),
            assumptions=[*self.prediction.placement.notes, *assumptions(self.prediction, self.spec)],
            certainty={
                "samples_per_second_low": slowest,
                "samples_per_second_high": fastest,
                "spare_bytes": _spare_bytes(self.prediction),
            },
            warnings=[*filter(None, (better or ())[:1]), *warnings(self.prediction, self.network)],
            speedup=self.samples_per_second / over.samples_per_second if over else None,
            speedup_over=over.name if over else None,
            other_uses=better[1] if better else None,
            with_timeline=with_timeline,
        )


def predict(network: MeasuredNetwork, placement: Placement) -> Plan:
    """Predict a placement: a plan's, or a run's.

    Raises:
        SpecError: the profile does not belong to the specification, or a block cannot be run.
    """
    inputs = network.planner_inputs(placement.devices)
    return Plan(network=network, prediction=Prediction(inputs=inputs, placement=placement))


def _spare_bytes(prediction: Prediction) -> int | None:
    """Return the bytes left on the device that has least left; None if a device's memory is not known."""
    left = prediction.spare_bytes.values()
    known = [bytes_left for bytes_left in left if bytes_left is not None]
    return min(known) if len(known) == len(left) else None

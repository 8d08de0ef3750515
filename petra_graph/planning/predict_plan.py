"""The predict step: memory and speed of a placement, as a plan that people and programs read.

How sure it is follows from a profile, which has the 10th and the 90th percentile of each operation's seconds: the tick is at least that of all
operations at their 10th, and at most that of all at their 90th.

Decision: bounds, and no random draws. Operations of one machine drift together as often as alone, and no profile says which.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from attrs import evolve, frozen

from petra_graph.compiler.memory_and_time import Prediction
from petra_graph.compiler.plan_as_json import document
from petra_graph.compiler.planner_inputs import clocks_of
from petra_graph.compiler.simulator.steady_state import tick
from petra_graph.kinds.optimizer import asks_for_delay
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.planning.advice.plan_assumptions import assumptions, throughput_range
from petra_graph.planning.advice.plan_warnings import warnings
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.planning.shared_across_stages import count_parameters
from petra_graph.program.node_costs import Operation
from petra_graph.program.placement import Placement
from petra_graph.program.plan_document import Document
from petra_graph.spec.model import Spec
from petra_graph.units import seconds


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
    def document(self, *, with_timeline: bool, better: Iterable[str] = ()) -> Document:
        """Return the plan as JSON.

        Args:
            with_timeline: list the first operations one by one.
            better: warnings that other configurations are better, which come first.
        """
        optimizer = self.network.checked.optimizer
        low, high = tick_interval(self.prediction, self.network) or (None, None)
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
            assumptions=[
                *self.prediction.placement.notes,
                *assumptions(self.prediction, self.spec),
                *_describe_interval(low, high),
            ],
            certainty={
                "tick_low_seconds": low,
                "tick_high_seconds": high,
                "samples_per_second_low": slowest,
                "samples_per_second_high": fastest,
                "spare_bytes": _spare_bytes(self.prediction),
            },
            warnings=chain(better, warnings(self.prediction, self.network)),
            with_timeline=with_timeline,
        )


def predict(network: MeasuredNetwork, placement: Placement) -> Plan:
    """Predict a placement: a plan's, or a run's.

    Raises:
        SpecError: the profile does not belong to the specification, or a block cannot be run.
    """
    inputs = network.planner_inputs(placement.devices)
    return Plan(network=network, prediction=Prediction(inputs=inputs, placement=placement))


def tick_interval(prediction: Prediction, network: MeasuredNetwork) -> tuple[float, float] | None:
    """Return the tick with every operation at its 10th percentile, and at its 90th; None without a profile that has them."""
    profile = prediction.inputs.profile
    if profile is None or not profile.spread:
        return None
    # Stages that share a device may take other turns, so a tick is not always between the two.
    ticks = [prediction.timing.tick_seconds, *(_tick_at(prediction, network, end) for end in (0, 1))]
    return min(ticks), max(ticks)


def _tick_at(prediction: Prediction, network: MeasuredNetwork, end: int) -> float:
    """Return the tick if every operation takes one end of its spread: the 10th percentile (0) or the 90th (1)."""
    inputs, profile = prediction.inputs, prediction.inputs.profile
    assert profile is not None

    def at_end(
        medians: Mapping[str, Mapping[Operation, float]], spread: Mapping[str, Mapping[Operation, tuple[float, float]]]
    ) -> Mapping[str, Mapping[Operation, float]]:
        return {
            name: {
                operation: spread.get(name, {}).get(operation, (median, median))[end]
                for operation, median in operations.items()
            }
            for name, operations in medians.items()
        }

    profile = evolve(
        profile, nodes=at_end(profile.nodes, profile.spread), host=at_end(profile.host, profile.host_spread)
    )
    clocks = clocks_of(inputs.devices, inputs.costs, network.spec.precision.products, profile)
    return tick(evolve(prediction, inputs=evolve(inputs, profile=profile, clocks=clocks)).pipeline).seconds


def _describe_interval(low: float | None, high: float | None) -> Iterator[str]:
    if low is not None and high is not None:
        yield (
            f"a micro-batch takes {seconds(low)} to {seconds(high)} within the spread of the profile: every operation at its 10th percentile, "
            "and at its 90th"
        )


def _spare_bytes(prediction: Prediction) -> int | None:
    """Return the bytes left on the device that has least left; None if a device's memory is not known."""
    left = prediction.spare_bytes.values()
    known = [bytes_left for bytes_left in left if bytes_left is not None]
    return min(known) if len(known) == len(left) else None

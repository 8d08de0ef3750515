"""How sure a plan is: its tick and its cut within the spread of a profile, and the memory that it leaves.

A profile has the 10th and the 90th percentile of each operation's seconds. The tick is at least that of all operations at their 10th,
and at most that of all at their 90th. For the cut the worst case is another one: the stages that set the tick take the 90th percentile, and all
other nodes the 10th. If the search finds no faster cut for these seconds, the cut is the best one within the spread.

Decision: bounds, and no random draws. Operations of one machine drift together as often as alone, and no profile says which.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from attrs import evolve, frozen

from petra_graph.compiler.memory_and_time import Prediction
from petra_graph.compiler.planner_inputs import PlannerInputs, clocks_of
from petra_graph.compiler.simulator.steady_state import SAME_SPEED, tick
from petra_graph.errors import PetraGraphError
from petra_graph.planning.network.measure_network import MeasuredNetwork
from petra_graph.planning.place.place_network import cut_by_cost
from petra_graph.program.node_costs import Operation
from petra_graph.program.plan_document import Document
from petra_graph.units import percent, seconds

_Seconds = Mapping[str, Mapping[Operation, float]]
"""By node and operation."""


@frozen(kw_only=True)
class Certainty:
    """How sure a plan is; None where nothing is known."""

    tick_seconds: tuple[float, float] | None
    """The least and the most within the spread of the profile."""
    faster_cut: float | None
    """The share of the tick by which another cut may be faster, at worst; 0: by no more than counts as equal. None too where no cut was searched for."""
    spare_bytes: int | None
    """Of the device that has the least left."""

    def sentences(self) -> Iterator[str]:
        """Say it for people."""
        if self.tick_seconds is not None:
            low, high = map(seconds, self.tick_seconds)
            yield (
                f"a micro-batch takes {low} to {high} within the spread of the profile: every operation at its 10th percentile, and at its 90th"
            )
        if self.faster_cut is not None:
            worst = (
                f"another cut is faster by {percent(self.faster_cut)}" if self.faster_cut else "no faster cut was found"
            )
            yield f"if the slowest stages take the 90th percentile and all others the 10th, {worst}"

    def document(self) -> Document:
        low, high = self.tick_seconds or (None, None)
        return {
            "tick_low_seconds": low,
            "tick_high_seconds": high,
            "faster_cut": self.faster_cut,
            "spare_bytes": self.spare_bytes,
        }


def certainty(prediction: Prediction, network: MeasuredNetwork, *, with_other_cuts: bool) -> Certainty:
    """Return how sure a prediction is.

    Args:
        with_other_cuts: search for faster cuts in the worst case, which takes as long as the first search.
    """
    interval = tick_interval(prediction, network)
    cut_by_us = with_other_cuts and interval is not None and network.stages is None
    return Certainty(
        tick_seconds=interval,
        faster_cut=_faster_cut(prediction, network) if cut_by_us else None,
        spare_bytes=_spare(prediction),
    )


def tick_interval(prediction: Prediction, network: MeasuredNetwork) -> tuple[float, float] | None:
    """Return the tick with every operation at its 10th percentile, and at its 90th; None without a profile that has them."""
    profile = prediction.inputs.profile
    if profile is None or not profile.spread:
        return None
    ends = [_tick(prediction, _slowed(prediction.inputs, network, slow)) for slow in ((), profile.nodes)]
    # Stages that share a device may take other turns, so a tick is not always between the two.
    found = [*ends, prediction.timing.tick_seconds]
    return min(found), max(found)


def _faster_cut(prediction: Prediction, network: MeasuredNetwork) -> float | None:
    """Return by which share the best cut is faster than this one, if this one's slowest stages are slow, and all other nodes fast."""
    stages = [prediction.placement.stages[index - 1] for index in prediction.timing.limited_by]
    worst = _slowed(prediction.inputs, network, {name for stage in stages for name in stage.nodes})
    try:
        best = cut_by_cost(network, evolve(worst, overlap=False))
    except PetraGraphError:
        return None
    here, there = _tick(prediction, worst), _tick(evolve(prediction, placement=best), worst)
    return 1 - there / here if there < here * (1 - SAME_SPEED) else 0.0


def _slowed(inputs: PlannerInputs, network: MeasuredNetwork, slow: Container[str]) -> PlannerInputs:
    """Return inputs in which some nodes take the 90th percentile, and all others the 10th."""
    profile = inputs.profile
    assert profile is not None

    def ends(medians: _Seconds, spread: Mapping[str, Mapping[Operation, tuple[float, float]]]) -> _Seconds:
        return {
            name: {
                operation: spread.get(name, {}).get(operation, (median, median))[name in slow]
                for operation, median in operations.items()
            }
            for name, operations in medians.items()
        }

    profile = evolve(profile, nodes=ends(profile.nodes, profile.spread), host=ends(profile.host, profile.host_spread))
    clocks = clocks_of(inputs.devices, inputs.costs, network.spec.precision.products, profile)
    return evolve(inputs, profile=profile, clocks=clocks)


def _tick(prediction: Prediction, inputs: PlannerInputs) -> float:
    return tick(evolve(prediction, inputs=inputs).pipeline).seconds


def _spare(prediction: Prediction) -> int | None:
    rooms = {device.name: device.memory_bytes or device.type.memory_bytes for device in prediction.inputs.devices}
    left = [
        None if (room := rooms[name]) is None else room - held.total for name, held in prediction.device_memory.items()
    ]
    known = [bytes_left for bytes_left in left if bytes_left is not None]
    return min(known) if len(known) == len(left) else None

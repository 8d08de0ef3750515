"""The devices that are used where there are more than stages, and a lower bound of the tick on any of them.

The solver runs on a few selections, those with the least lower bounds and those with most memory; the time search then
looks at the others too, as far as their bounds leave room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import add

from attrs import evolve, frozen

from petra_graph.compiler.cut_bound import CutBound
from petra_graph.compiler.cuts import CHOICES, Hosts, device_orders
from petra_graph.compiler.node_seconds import NodeSeconds, NodeTable, device_kind
from petra_graph.compiler.partition_problem import bound_problem
from petra_graph.compiler.partitioner.device_order import BestOrder, Kind, best_order
from petra_graph.compiler.partitioner.known_stages import stages_as_items
from petra_graph.compiler.partitioner.lower_bound import EXACT, message_seconds, tick_bound, works
from petra_graph.compiler.partitioner.problem import PartitionProblem
from petra_graph.compiler.partitioner.topological_orders import has_one_order
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.program.schedule import depths

_TRIED = 4
"""Selections that the solver runs on, by their bounds, and where memory is limited as many by their memory."""
_COARSE = 1e-3
"""The relative width of the bounds of orders of which another one has a lesser bound."""


@frozen(kw_only=True)
class Selection:
    """Devices for the solver."""

    tried: Sequence[PlannerInputs]
    """With the devices of each selection."""
    cut_bound: CutBound
    """Of cuts on all devices."""
    bound: float
    """No tick is below, on any selection."""
    order_bounds: Mapping[Hosts, float]
    """No tick on an order of devices is below."""
    complete: bool
    """Whether these are all orders."""


def has_unlike_devices(inputs: PlannerInputs) -> bool:
    """Whether it matters which devices are used."""
    return len({device_kind(inputs, device) for device in inputs.devices}) > 1


def keeps_listed_order(inputs: PlannerInputs) -> bool:
    """Whether devices keep their listed order: as the specification says, and where they differ by their machine alone."""
    return inputs.order == "listed" or len({device_kind(inputs, evolve(one, machine=0)) for one in inputs.devices}) == 1


def select(inputs: PlannerInputs, table: NodeTable, stages: int, given: Sequence[Sequence[str]] | None) -> Selection:
    """Return the selections of devices to try for a number of stages, which may be given by their nodes."""
    seconds = table.on(inputs)
    used = min(stages, len(inputs.devices))
    kinds = [device_kind(inputs, device) for device in inputs.devices]
    listed = keeps_listed_order(inputs)
    choices = list(islice(device_orders(kinds, used, listed=listed), CHOICES + 1))
    everyone = len(choices) <= CHOICES
    bound = _Bound(inputs=inputs, table=table, stages=stages, given=given)
    least = bound.of([_fastest(seconds)] * used)
    if not everyone:
        choices = [*_outstanding(inputs, seconds, used), *choices[: 2 * _TRIED]]
        if not listed and (order := bound.best_order(seconds, used, least)):
            choices.append(order.devices)
            least = order.bound
    bounds = {choice: bound.of([seconds[device] for device in choice], _COARSE) for choice in dict.fromkeys(choices)}
    refined = set[Hosts]()
    while everyone and (lowest := min(bounds, key=bounds.__getitem__)) not in refined:
        bounds[lowest] = bound.of([seconds[device] for device in lowest])
        refined.add(lowest)
    ranked = sorted(bounds, key=lambda choice: bounds[choice])
    tried = ranked[:_TRIED]
    if any(limit is not None for limit in inputs.limits):
        sets = {frozenset(choice): choice for choice in reversed(ranked)}.values()
        tried += sorted(sets, key=lambda choice: _memory(inputs, choice), reverse=True)[:_TRIED]
    return Selection(
        tried=[evolve(inputs, devices=tuple(inputs.devices[device] for device in one)) for one in dict.fromkeys(tried)],
        cut_bound=CutBound.of(inputs, table),
        bound=min(bounds.values()) if everyone else least,
        order_bounds=bounds,
        complete=everyone,
    )


def least_tick(inputs: PlannerInputs, table: NodeTable, stages: int) -> float:
    """Return seconds that no tick of a number of stages is below, on any of the devices."""
    bound = _Bound(inputs=inputs, table=table, stages=stages, given=None)
    return bound.of([_fastest(table.on(inputs))] * min(stages, len(inputs.devices)))


def _outstanding(inputs: PlannerInputs, seconds: Sequence[NodeSeconds], stages: int) -> list[Hosts]:
    """Return the fastest devices, and those with most memory."""
    fastest = sorted(range(len(seconds)), key=lambda device: sum(seconds[device].inner))
    largest = sorted(range(len(seconds)), key=lambda device: _memory(inputs, (device,)), reverse=True)
    return [tuple(sorted(order[:stages])) for order in (fastest, largest)]


def _memory(inputs: PlannerInputs, devices: Hosts) -> tuple[float, float]:
    sizes = [float("inf") if (size := inputs.devices[device].memory_bytes) is None else size for device in devices]
    return min(sizes), sum(sizes)


def _fastest(seconds: Sequence[NodeSeconds]) -> NodeSeconds:
    """Return a device that is as fast at each node as any."""
    return NodeSeconds(
        inner=_least(one.inner for one in seconds),
        undelayed=_least(one.undelayed for one in seconds),
        last=_least(one.last for one in seconds),
        forward=_least(one.forward for one in seconds),
        backward=_least(one.backward for one in seconds),
        update=_least(one.update for one in seconds),
        stage=min(one.stage for one in seconds),
    )


def _least(of_devices: Iterable[Sequence[float]]) -> tuple[float, ...]:
    return tuple(map(min, zip(*of_devices, strict=True)))


@frozen(kw_only=True)
class _Bound:
    """The lower bounds of the ticks of all cuts on some devices."""

    inputs: PlannerInputs
    table: NodeTable
    stages: int
    given: Sequence[Sequence[str]] | None

    def of(self, seconds: Sequence[NodeSeconds], width: float = EXACT) -> float:
        """Return it for devices with these seconds: by their work, or by the way of a micro-batch through all stages."""
        problem = self._of_nodes(seconds)
        return max(tick_bound(self._of_stages(problem), width), self._round_trip(problem, seconds))

    def best_order(self, seconds: Sequence[NodeSeconds], used: int, least: float) -> BestOrder | None:
        """Return the best order of as many devices; None for a network with branches, or too many kinds.

        Args:
            seconds: of every device.
            least: no order's seconds are below.
        """
        alike: dict[int, list[int]] = {}
        for device, own in enumerate(seconds):
            alike.setdefault(seconds.index(own), []).append(device)
        problems = [self._of_stages(self._of_nodes([seconds[first]] * used)) for first in alike]
        if not has_one_order(problems[0]):
            return None
        kinds = [
            Kind(devices=devices, inner=works(problem)[0], last=works(problem)[-1])
            for devices, problem in zip(alike.values(), problems, strict=True)
        ]
        return best_order(kinds, used, message_seconds(problems[0]), least)

    def _of_nodes(self, seconds: Sequence[NodeSeconds]) -> PartitionProblem:
        last = () if self.given is None else self.given[-1]
        return bound_problem(self.inputs, self.table, self.stages, seconds, last)

    def _of_stages(self, problem: PartitionProblem) -> PartitionProblem:
        if self.given is None:
            return problem
        return stages_as_items(problem, [[problem.index[name] for name in names] for names in self.given])

    def _round_trip(self, problem: PartitionProblem, seconds: Sequence[NodeSeconds]) -> float:
        """Return the seconds of a micro-batch's way to the head and back, shared by those that may be on it.

        A stage has as many micro-batches in flight as its depth; the first stage's is the largest.
        """
        if self.inputs.schedule == "auto":
            return 0.0
        least = [min(own) for own in zip(*(map(add, one.forward, one.backward) for one in seconds), strict=True)]
        longest = [0.0] * len(least)
        for item in range(len(least)):
            before = max((longest[one] for one in problem.graph.predecessors(item)), default=0.0)
            longest[item] = before + least[item]
        if all(problem.graph.has_edge(item - 1, item) for item in range(1, len(least))):
            latency = min(device.link.latency_seconds for device in self.inputs.devices)
            longest[-1] += 2 * (len(seconds) - 1) * latency
        flushes = self.inputs.method.flush == "window"
        in_flight = (
            self.inputs.accumulation
            if flushes
            else max(depths(self.inputs.schedule, list(reversed(range(self.stages))), self.inputs.accumulation))
        )
        return longest[-1] / in_flight

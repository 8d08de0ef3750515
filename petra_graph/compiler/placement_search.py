"""The placement step: the table proposes stages on devices, the memory model refuses, the time model chooses.

    table --best intervals--> cuts --memory model--> cuts that keep the limits --time model--> the fastest, and its neighbours
      ^---- what they hold ----'

If none of the table's proposals keeps the limits, the neighbours of the nearest one are searched for one that does.

A number of stages that is left open is the fewest that are about as fast as the best number: each stage more is a message more and a
micro-batch more of delay, so a device that makes training hardly faster is left idle.

Decision: a device without a stage is spare only if devices outnumber stages; then which are used is part of the search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from math import inf

from attrs import evolve

from petra_graph.compiler.cut_search import (
    Bytes,
    CutSearch,
    Held,
    Seconds,
    held_bytes,
    keeps,
    parts_of,
    shares,
)
from petra_graph.compiler.cuts import Cut, CutSpace, Hosts, best_orders, cut_of
from petra_graph.compiler.node_table import NodeTable, device_kind, node_table
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.prediction import Prediction
from petra_graph.compiler.proposals import Proposals
from petra_graph.compiler.simulator.least_depths import least_depths
from petra_graph.compiler.simulator.steady_state import tick
from petra_graph.compiler.spec_checks import check_depths
from petra_graph.errors import NoFeasiblePlan, Problem, shown
from petra_graph.program.node_costs import NodeCost, Operation
from petra_graph.program.placement import Partition, Placement
from petra_graph.units import noun, plural, seconds, size_text

ABOUT_AS_FAST = 1.05
"""A tick over the best number's, of fewer stages that are taken."""
_TRIED = 4
"""Orders of devices for which the table is cut, by its seconds, and as many by their memory if that is limited."""
_PROPOSALS = 60
"""Of the table on one order of devices, under memory limits."""
_TOO_MUCH = 10_000
"""A cut that takes more to time is not timed: a thousand stages that share devices."""
_DIFFERENTIATE: Sequence[Operation] = ("forward_backward", "reverse", "recompute", "replay")
"""What a node may do in a backward, by what it keeps."""
_UNTIMED = "by work and messages alone; there are too many stages on shared devices to time other cuts"
_LESS = (
    'set data.batch lower or partition.memory higher, use more devices or processes, or let nodes keep less, by method.keep = "auto" (if it is not that '
    "already) or another method: `petra-graph plan SPEC --compare` says what each would hold"
)


def cut_and_place(inputs: PlannerInputs, stages: int) -> Placement:
    """Cut the network into a number of stages, at most `most_stages`, and place them.

    Raises:
        SpecError: the listed depths do not fit the stages.
        NoFeasiblePlan: the devices' memory does not suffice.
    """
    return _Planner(inputs, stages, None).place()


def place_stages(inputs: PlannerInputs, stages: Partition) -> Placement:
    """Place given stages: by cost where they outnumber the devices, or where unlike devices outnumber them.

    Raises:
        NoFeasiblePlan: the devices' memory does not suffice.
    """
    count, devices = len(stages.stages), len(inputs.devices)
    alike = len({device_kind(inputs, device) for device in inputs.devices}) == 1
    if devices == 1 or (devices == count and _keeps_listed_order(inputs)) or (devices > count and alike):
        return within_memory(inputs, stages.spread_over([device.name for device in inputs.devices[:count]]))
    return _Planner(inputs, count, [stage.nodes for stage in stages.stages]).place()


def within_memory(inputs: PlannerInputs, stages: Partition) -> Placement:
    """Return stages whose devices are given, where the devices' memory suffices.

    Raises:
        NoFeasiblePlan: it does not.
    """
    placement = _placement(inputs, stages)
    if any(limit is not None for limit in inputs.limits):
        held = held_bytes(inputs, placement)
        if not keeps(held, inputs.limits):
            raise _refused(inputs, node_table(inputs), placement, held)
    return placement


def resolved_placement(inputs: PlannerInputs, stages: Partition) -> Placement:
    """Return stages on devices with their schedule; "auto" becomes the least depths at full speed."""
    named = "1f1b" if inputs.schedule == "auto" else inputs.schedule
    placement = Placement(stages=stages.stages, devices=inputs.devices, schedule=named)
    if inputs.schedule != "auto":
        return placement
    return evolve(placement, schedule=least_depths(inputs.pipeline(inputs.placed(placement))))


def _placement(inputs: PlannerInputs, stages: Partition) -> Placement:
    check_depths(inputs.schedule, inputs.graph, stages)
    return resolved_placement(inputs, stages)


def _keeps_listed_order(inputs: PlannerInputs) -> bool:
    """Whether devices keep their listed order, because they differ by their machine alone."""
    return len({device_kind(inputs, evolve(one, machine=0)) for one in inputs.devices}) == 1


class _Planner:
    """The search for one placement."""

    def __init__(self, inputs: PlannerInputs, stages: int, given: Sequence[Sequence[str]] | None) -> None:
        self._inputs = inputs
        self._limited = any(limit is not None for limit in inputs.limits)
        self._table = node_table(self._inputs)
        order = inputs.graph.order
        position = {name: place for place, name in enumerate(order)}
        self._space = CutSpace(
            edges=[(position[a], position[b]) for a, b in inputs.graph.digraph.edges],
            count=len(order),
            stages=stages,
            kinds=[device_kind(inputs, device) for device in inputs.devices],
            listed=_keeps_listed_order(inputs),
            together=[[position[name] for name in names] for names in inputs.together],
            fixed=None if given is None else cut_of(given, (), order).stages,
        )
        self._proposals = Proposals(table=self._table, space=self._space)
        self._placed = partial(_placement, self._inputs)

    def place(self) -> Placement:
        """Return the fastest placement by the time model that keeps the limits by the memory model."""
        starts = [cut for hosts in self._orders[:_TRIED] if (cut := self._proposals.best(hosts))]
        if not self._limited:
            return self._fastest(starts)
        may_fit = self._may_fit()
        fitting, search = self._search_fitting(starts, widely=may_fit)
        if not fitting:
            assert search.best is not None, "there is a start"
            placement = search.best.placement
            vain = f"found no cut that fits, of {plural(search.measured, search.space.noun)} tried; in the nearest, "
            error = _refused(self._inputs, self._table, placement, held_bytes(self._inputs, placement), vain)
            if not may_fit:
                error.nearest = None
            raise error
        return self._fastest([*fitting, *self._under_limits()])

    def _may_fit(self) -> bool:
        """Whether some cut may keep the limits, by a bound of what any holds; most hopeless searches end here.

        From the first update on, a device holds the parameters and the optimizer's state of all its nodes, and while it differentiates one of
        them, that node's work beside them. If it hosts one stage, all gradients are there from a window's second micro-batch on. So what some
        nodes keep is at most what the devices may hold, less the least work of these nodes on each.
        """
        inputs, limits = self._inputs, [limit for limit in self._inputs.limits if limit is not None]
        if len(limits) < len(inputs.devices):
            return True
        rooms = [limit - inputs.transport.libraries for limit in sorted(limits)[-self._space.stages :]]
        gradients = self._space.stages <= len(limits) and inputs.accumulation > 1
        kept_beside = [
            (
                _least_working(node),
                node.parameter_bytes + node.statistics_bytes + node.optimizer_bytes + gradients * node.gradient_bytes,
            )
            for node in inputs.costs.nodes.values()
        ]
        return all(
            sum(kept for other, kept in kept_beside if other >= working) <= sum(room - working for room in rooms)
            for working in {working for working, _ in kept_beside}
        )

    @cached_property
    def _orders(self) -> Sequence[Hosts]:
        """Orders of the devices that are used, the fastest first, then those in which the fullest device is least full."""
        space, inputs = self._space, self._inputs
        used = min(space.stages, len(space.kinds))
        nodes = space.count if space.fixed is None else space.stages
        fastest = sorted(range(len(space.kinds)), key=lambda device: sum(self._table.seconds[device].inner))
        rank = partial(best_orders, space.kinds, used, listed=space.listed, nodes=nodes)
        orders = rank(value=self._proposals.busiest, begin=fastest)[:_TRIED]
        if self._limited:
            parts = parts_of(inputs.limits)
            roomiest = sorted(range(len(parts)), key=parts.__getitem__, reverse=True)
            orders += rank(value=partial(self._proposals.fullest, parts=parts), begin=roomiest)[:_TRIED]
        return list(dict.fromkeys(orders))

    def _search_fitting(self, starts: Sequence[Cut], *, widely: bool) -> tuple[list[Cut], CutSearch]:
        """Return the cuts that fit, until one was found, of starts and, if `widely`, of what the table proposes and its neighbours."""
        measure, fitting = Bytes(inputs=self._inputs, table=self._table, placed=self._placed), list[Cut]()
        measure.left *= widely
        search = CutSearch(space=self._space, measure=measure, enough=measure.enough)

        def offer(cut: Cut) -> Held:
            found = measure.held(cut)
            self._proposals.learn(cut, found.held)
            if found.fits:
                fitting.append(cut)
            search.offer(found)
            return found

        for start in starts:
            offer(start)
        for hosts in self._orders:
            tried = set[Cut]()
            while not search.satisfied and len(tried) < _PROPOSALS and measure.left > 0:
                cut = self._proposals.best(hosts, parts=measure.parts)
                if cut is None or cut in tried:
                    break
                tried.add(cut)
                offer(cut)
        search.run()
        if search.satisfied and not fitting:
            assert search.best is not None
            fitting.append(search.best.cut)
        return fitting, search

    def _under_limits(self) -> Iterator[Cut]:
        """Yield the table's fastest cuts that the memory model finds within the limits, on each order of devices one."""
        measure = Bytes(inputs=self._inputs, table=self._table, placed=self._placed)
        for hosts in self._orders:
            tried = set[Cut]()
            while len(tried) < _PROPOSALS and measure.left > 0:
                cut = self._proposals.best(hosts, limits=self._inputs.limits)
                if cut is None or cut in tried:
                    break
                tried.add(cut)
                found = measure.held(cut)
                self._proposals.learn(cut, found.held)
                if found.fits:
                    yield cut
                    break

    def _fastest(self, starts: Sequence[Cut]) -> Placement:
        """Return the fastest placement that was found from starts, which keep the memory limits."""
        inputs = self._inputs
        measure = Seconds(inputs=inputs, table=self._table, placed=self._placed)
        search = CutSearch(space=self._space, measure=measure)
        for cut in dict.fromkeys(starts):
            placement = self._placed(inputs.hosted(cut))
            if measure.effort(inputs.placed(placement), resolved=True) > _TOO_MUCH:
                return evolve(placement, guarantee=_UNTIMED)
            search.offer(measure.timed(cut, placement))
        search.run()
        assert search.best is not None, "there is a start"
        timed = f"the smallest tick found, with {search.measured} {noun(search.measured, self._space.noun)} timed"
        return evolve(search.best.placement, guarantee=timed + self._space.terms)


def _least_working(node: NodeCost) -> int:
    """Return the bytes that a node's backward needs at its largest moment, whatever the node keeps; a graph that it keeps is part of them."""
    needs = (
        min(work.working_bytes, work.accumulating_bytes)
        + (node.work["record"].kept_bytes if operation == "replay" else 0)
        for operation in _DIFFERENTIATE
        if (work := node.work.get(operation))
    )
    return min(needs, default=0)


def _refused(
    inputs: PlannerInputs, table: NodeTable, placement: Placement, held: Sequence[int], cuts: str = ""
) -> NoFeasiblePlan:
    """Return the error: the device that is short of most, its bytes, and the node that needs most of them; none of the `cuts` fits."""
    limits = inputs.limits
    parts = shares(held, limits)
    worst = max(range(len(parts)), key=lambda index: parts[index])
    device = inputs.devices[worst]
    alone = {
        name: node.resident + node.buffer + node.working
        for name, node in zip(inputs.graph.order, table.nodes, strict=True)
    }
    heaviest = max(
        (name for stage in placement.stages if stage.device == device.name for name in stage.nodes),
        key=alone.__getitem__,
    )
    all_of_it = f", all that {device.type.name} has" if limits[worst] == device.type.memory_bytes else ""
    message = (
        f"{cuts}device {shown(device.name)} would hold {size_text(held[worst])} and may hold "
        f"{size_text(limits[worst] or 0)}{all_of_it}; its largest node is {shown(heaviest)}, with "
        f"{size_text(alone[heaviest])} by itself"
    )
    error = NoFeasiblePlan(Problem(message=message, hint=_LESS, path=("partition", "memory")))
    error.nearest = placement
    return error


def cut_into_fewest(inputs: PlannerInputs) -> Placement:
    """Cut the network into the fewest stages, at most one a device, whose tick is within 5 % of the best number's, and place them.

    Raises:
        SpecError: the listed depths do not fit the stages.
        NoFeasiblePlan: the devices' memory does not suffice for any number; of the largest one.
    """
    if isinstance(inputs.schedule, tuple):
        return cut_and_place(inputs, len(inputs.schedule))
    bounds, ticks = _least_seconds(inputs), dict[int, float]()
    found, refused = dict[int, Placement](), dict[int, NoFeasiblePlan]()

    def search(stages: int) -> float:
        """Place a number of stages, once, and return its tick; infinite if nothing fits."""
        if stages not in ticks:
            ticks[stages] = inf
            try:
                found[stages] = cut_and_place(inputs, stages)
                ticks[stages] = tick(Prediction(inputs=inputs, placement=found[stages]).pipeline).seconds
            except NoFeasiblePlan as error:
                refused[stages] = error
        return ticks[stages]

    def would_take(stages: int) -> str:
        if stages in refused:
            return f"{stages} would not fit"
        return f"{stages} would take {seconds(ticks[stages]) if stages in ticks else f'at least {seconds(bounds[stages])}'}"

    for stages in sorted(bounds, key=lambda stages: (bounds[stages], stages)):
        if bounds[stages] < min(ticks.values(), default=inf):
            search(stages)
    best = min(sorted(ticks, reverse=True), key=ticks.__getitem__)
    if best in refused:
        raise refused[best]
    enough = ABOUT_AS_FAST * ticks[best]
    fewest = next(
        stages for stages in bounds if ticks.get(stages, bounds[stages]) <= enough and search(stages) <= enough
    )
    others = sorted({fewest - 1, fewest + 1, best} & set(bounds) - {fewest})
    chosen = f'partition.stages = "auto": {plural(fewest, "stage")} for {seconds(ticks[fewest])} a micro-batch'
    return evolve(found[fewest], notes=(*found[fewest].notes, "; ".join([chosen, *map(would_take, others)])))


def _least_seconds(inputs: PlannerInputs) -> dict[int, float]:
    """Return seconds that hardly any tick is below, of every number of stages: those of the longest node, and an even share of all work.

    Nodes that share a stage may take less than apart: they hand nothing on.
    """
    devices = node_table(inputs).seconds
    nodes = [min(own) for own in zip(*(one for each in devices for one in (each.inner, each.last)), strict=True)]
    most = min(len(inputs.devices), inputs.most_stages)
    return {stages: max(*nodes, sum(nodes) / stages) for stages in range(1, most + 1)}

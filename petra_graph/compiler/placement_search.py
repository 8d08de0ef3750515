"""The placement step: the solver proposes stages on devices, the memory model refuses, the time model chooses.

    inputs --items--> solver --stages, devices--> memory model --> candidates that keep the limits --> the fastest
                         ^------ corrected limits ------'                       time model, and their neighbours

Where none of the solver's best keeps the limits, `memory_search` looks for a cut that does, and decides alone whether there is one.
It also finds the least memory; the fastest of the cuts that need no more is then taken.

Decision: a device without a stage is spare only where devices outnumber stages; then which are used is part of the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from attrs import evolve

from petra_graph.compiler.cut_search import CutSearch
from petra_graph.compiler.cuts import CutSpace, cut_of
from petra_graph.compiler.device_selection import has_unlike_devices, keeps_listed_order, select
from petra_graph.compiler.listed_stages import partition
from petra_graph.compiler.memory_search import Bytes, search_bytes
from petra_graph.compiler.node_seconds import NodeTable, device_kind, node_table
from petra_graph.compiler.partition_problem import partition_problem
from petra_graph.compiler.partitioner.contraction import contracted
from petra_graph.compiler.partitioner.interval_costs import CutCosts
from petra_graph.compiler.partitioner.known_stages import find_place, find_with_last_stage
from petra_graph.compiler.partitioner.problem import Objective, PartitionProblem
from petra_graph.compiler.partitioner.search import find, own_bytes
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.proposals import Candidate, Limits, Proposals, held_bytes, keeps, shares
from petra_graph.compiler.simulator.least_depths import least_depths
from petra_graph.compiler.spec_checks import check_depths
from petra_graph.compiler.time_search import Seconds, fastest
from petra_graph.errors import NoFeasiblePlan, Problem, shown
from petra_graph.program.placement import Partition, Placement
from petra_graph.spec.model import RequestedSchedule, Schedule
from petra_graph.units import plural, size_text

_LESS = (
    'set data.batch lower or partition.memory higher, use more devices or processes, or let nodes keep less, by method.keep = "auto" or '
    "another method: `petra-graph plan SPEC --compare` says what each would hold"
)


def cut_and_place(inputs: PlannerInputs, stages: int, objective: Objective) -> Placement:
    """Cut the network into a number of stages, at most `most_stages`, and place them.

    Raises:
        SpecError: the listed depths do not fit the stages.
        NoFeasiblePlan: the devices' memory does not suffice.
    """
    groups = {names[0]: names for names in inputs.together}

    def nodes_of(items: Iterable[str]) -> list[str]:
        return [name for item in items for name in groups.get(item, (item,))]

    def proposals(used: PlannerInputs, table: NodeTable) -> Proposals:
        def solve(goal: Objective, limits: Limits) -> CutCosts | None:
            def problem(kept: Iterable[str] = ()) -> PartitionProblem:
                whole = partition_problem(used, table, stages, goal, limits, last_stage=nodes_of(kept))
                return contracted(whole, used.together)

            return find_with_last_stage(problem) if used.last_stage_keeps_graph else find(problem())

        def placed(solution: CutCosts) -> Placement:
            cut = [nodes_of(stage.items) for stage in solution.stages]
            return _placement(used, _hosted(partition(used.graph, cut, [""]), used, solution))

        return Proposals(inputs=used, solve=solve, placed=placed, objective=objective)

    return _best(inputs, stages, None, proposals, objective)


def place_stages(inputs: PlannerInputs, stages: Partition, objective: Objective) -> Placement:
    """Place given stages: by cost where they outnumber the devices, or where unlike devices outnumber them.

    Raises:
        NoFeasiblePlan: the devices' memory does not suffice.
    """
    count, devices = len(stages.stages), len(inputs.devices)
    alike = not has_unlike_devices(inputs)
    if devices == 1 or (devices == count and keeps_listed_order(inputs)) or (devices > count and alike):
        return within_memory(inputs, stages.spread_over([device.name for device in inputs.devices[:count]]))
    nodes = [stage.nodes for stage in stages.stages]

    def proposals(used: PlannerInputs, table: NodeTable) -> Proposals:
        def solve(goal: Objective, limits: Limits) -> CutCosts | None:
            return find_place(partition_problem(used, table, None, goal, limits, last_stage=nodes[-1]), nodes)

        def placed(solution: CutCosts) -> Placement:
            return _placement(used, _hosted(stages, used, solution))

        return Proposals(inputs=used, solve=solve, placed=placed, objective=objective)

    return _best(inputs, count, nodes, proposals, objective)


def within_memory(inputs: PlannerInputs, stages: Partition) -> Placement:
    """Return stages whose devices are given, where the devices' memory suffices.

    Raises:
        NoFeasiblePlan: it does not.
    """
    placement = _placement(inputs, stages)
    if any(limit is not None for limit in inputs.limits):
        held = held_bytes(inputs, placement)
        if not keeps(held, inputs.limits):
            raise _refused(Candidate(inputs=inputs, placement=placement, held_bytes=held))
    return placement


def resolved_placement(inputs: PlannerInputs, stages: Partition) -> Placement:
    """Return stages on devices with their schedule; "auto" becomes the least depths at full speed."""
    placement = Placement(stages=stages.stages, devices=inputs.devices, schedule=_named(inputs.schedule))
    if inputs.schedule != "auto":
        return placement
    return evolve(placement, schedule=least_depths(inputs.pipeline(inputs.placed(placement))))


def _named(schedule: RequestedSchedule) -> Schedule:
    return "1f1b" if schedule == "auto" else schedule


def _best(
    inputs: PlannerInputs,
    stages: int,
    given: Sequence[Sequence[str]] | None,
    proposals: Callable[[PlannerInputs, NodeTable], Proposals],
    objective: Objective,
) -> Placement:
    """Return the best placement of a number of stages, which may be given: by the time model, or by the memory model."""
    inputs = evolve(inputs, overlap=False)  # A run does not overlap.
    limited = any(limit is not None for limit in inputs.limits)
    table = node_table(inputs)
    selection = select(inputs, table, stages, given)
    order = inputs.graph.order
    position = {name: place for place, name in enumerate(order)}
    space = CutSpace(
        edges=[(position[a], position[b]) for a, b in inputs.graph.digraph.edges],
        count=len(order),
        stages=stages,
        kinds=[device_kind(inputs, device) for device in inputs.devices],
        orders=tuple(selection.order_bounds) if selection.complete else None,
        listed=keeps_listed_order(inputs),
        together=[[position[name] for name in names] for names in inputs.together],
        fixed=None if given is None else cut_of(given, (), order).stages,
    )
    placed = partial(_placement, inputs)
    solvers = [proposals(used, table) for used in selection.tried]
    unlimited = [list(solver.unlimited()) for solver in solvers]
    starts = [(solver, one) for solver, own in zip(solvers, unlimited, strict=True) for one in own]
    if not any(candidate.fits for _, candidate in starts):
        search = search_bytes(Bytes(inputs=inputs, placed=placed, within_limits=False), space, starts)
        found = _candidate(inputs, search)
        if not found.fits:
            raise _refused(found, f"{_in_vain(search)}; in the nearest, ")
        starts.append((solvers[0], found))
    for solver, own in zip(solvers, unlimited, strict=True):
        if len(own) > 1 and limited:
            starts += [(solver, one) for one in solver.corrected(objective, own[-1])]
    fitting = [candidate.placement for _, candidate in starts if candidate.fits]
    seconds = Seconds(inputs=inputs, cut_bound=selection.cut_bound, order_bounds=selection.order_bounds, placed=placed)
    if objective == "balanced":
        return fastest(seconds, space, selection.bound, fitting)
    search = search_bytes(Bytes(inputs=inputs, placed=placed, within_limits=True), space, starts)
    lowest = _candidate(inputs, search)
    seconds.inputs = _limited(inputs, max(lowest.held_bytes))
    best = fastest(seconds, space, selection.bound, [lowest.placement])
    return evolve(best, devices=inputs.devices, guarantee=_least_memory(search, limited=limited))


def _candidate(inputs: PlannerInputs, search: CutSearch) -> Candidate:
    """Return what a search for memory has found, with all its bytes."""
    assert search.best is not None, "there is a start"
    placement = search.best.placement
    return Candidate(inputs=inputs, placement=placement, held_bytes=held_bytes(inputs, placement))


def _limited(inputs: PlannerInputs, limit: int) -> PlannerInputs:
    devices = (
        evolve(one, memory_bytes=limit if one.memory_bytes is None else min(one.memory_bytes, limit))
        for one in inputs.devices
    )
    return evolve(inputs, devices=tuple(devices))


def _in_vain(search: CutSearch) -> str:
    """Return that no cut fits, or how many were tried, for people."""
    if search.complete:
        return f"no {search.space.noun} fits{search.space.terms}"
    return f"found none that fits, of {plural(search.measured, search.space.noun)} tried"


def _least_memory(search: CutSearch, *, limited: bool) -> str:
    """Return how good a cut for memory is, for people; each word is proven."""
    kept = " that keeps the memory limits" if limited else ""
    if search.complete:
        return f"least memory: no {search.space.noun}{kept} holds less on its fullest device{search.space.terms}"
    return f"the least memory found on the fullest device, with {plural(search.measured, search.space.noun)} tried"


def _hosted(stages: Partition, inputs: PlannerInputs, solution: CutCosts) -> Partition:
    return stages.spread_over([inputs.devices[stage.device].name for stage in solution.stages])


def _placement(inputs: PlannerInputs, stages: Partition) -> Placement:
    check_depths(inputs.schedule, inputs.graph, stages)
    return resolved_placement(inputs, stages)


def _refused(candidate: Candidate, cuts: str = "") -> NoFeasiblePlan:
    """Return the error: the device that is short of most, its bytes, and the node that needs most of them; none of the `cuts` fits."""
    inputs, placement, held = candidate.inputs, candidate.placement, candidate.held_bytes
    limits = inputs.limits
    parts = shares(held, limits)
    worst = max(range(len(parts)), key=lambda index: parts[index])
    device = inputs.devices[worst]
    alone = evolve(inputs, devices=(device,))  # there may be more devices than nodes
    problem = partition_problem(alone, node_table(alone), None, "memory", [None])
    nodes = [name for stage in placement.stages if stage.device == device.name for name in stage.nodes]
    heaviest = max((problem.items[problem.index[name]] for name in nodes), key=lambda item: own_bytes(problem, item))
    all_of_it = f", all that {device.type.name} has" if limits[worst] == device.type.memory_bytes else ""
    message = (
        f"{cuts}device {shown(device.name)} would hold {size_text(held[worst])} and may hold "
        f"{size_text(limits[worst] or 0)}{all_of_it}; its largest node is {shown(heaviest.name)}, with "
        f"{size_text(own_bytes(problem, heaviest))} by itself"
    )
    error = NoFeasiblePlan(Problem(message=message, hint=_LESS, path=("partition", "memory")))
    error.nearest = placement
    return error

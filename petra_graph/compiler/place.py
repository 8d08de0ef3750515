"""Where to cut, and what goes where: the solver proposes, the memory model disposes.

    setting --items--> solver --stages, devices--> memory model --> the best proposal that keeps the limits
                          ^------ limits, corrected by what it said of the last proposal ------'

The solver adds bytes up node by node; the memory model goes through the stages' own operations, and is right. So limits are
given to the solver in its own measure: times what it counts, over what the model finds. Nothing is refused that the model
has not refused.

Decision: a last stage that keeps graphs does less work, so more belongs into it, which is what the solver must know
before it cuts. It is asked until the last stage is the one that it was told of, and the best of its answers is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from attrs import evolve, frozen

from petra_graph.compiler.flatten import partition_problem
from petra_graph.compiler.memory.pipeline_memory import device_memory, stage_memory
from petra_graph.compiler.partition import partition
from petra_graph.compiler.partitioner.cut_costs import cut_costs
from petra_graph.compiler.partitioner.problem import Objective, PartitionProblem
from petra_graph.compiler.partitioner.search import Solution, find, own_bytes
from petra_graph.compiler.partitioner.stage_placement import find_place
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.simulator.least_depths import least_depths
from petra_graph.errors import NoFeasiblePlan, Problem, SpecError, shown
from petra_graph.program.partition import Partition
from petra_graph.spec.model import Schedule
from petra_graph.spec.sizes import size_text

_TRIES = 6
"""Of the solver, with limits corrected."""
_ROUNDS = 4
"""Of the solver, to find the last stage that keeps graphs."""
_PATH = ("partition", "stages")
_Answer = Callable[[Objective, Sequence[float | None]], Solution | None]


@frozen(kw_only=True)
class Cut:
    """Stages on devices, and how good that is."""

    partition: Partition
    guarantee: str
    """For people; "" where there was nothing to choose."""


@frozen(kw_only=True)
class _Proposal:
    """A cut, what the solver says of it, and what the memory model says."""

    cut: Cut
    tick_seconds: float
    counted: Sequence[int]
    """Every device's bytes, as the solver counts them."""
    held: Sequence[int]
    """The same by the memory model."""

    def keeps(self, limits: Sequence[int | None]) -> bool:
        return all(limit is None or used <= limit for used, limit in zip(self.held, limits, strict=True))

    def corrected(self, limits: Sequence[int | None]) -> list[float | None]:
        """Return the limits in the solver's measure."""
        return [
            None if limit is None else limit * (counted / held if held else 1.0)
            for limit, counted, held in zip(limits, self.counted, self.held, strict=True)
        ]


def cut(setting: PlannerInputs, stages: int, objective: Objective) -> Cut:
    """Cut the network into a number of stages, and place them.

    Raises:
        SpecError: there are fewer nodes.
        NoFeasiblePlan: the devices' memory does not suffice.
    """
    nodes = len(setting.graph.order)
    if stages > nodes:
        message = f"{stages} stages for {nodes} nodes: a stage holds one at least"
        raise SpecError(Problem(message=message, hint=f"set it to {nodes} or less", path=_PATH))
    used = evolve(setting, devices=setting.devices[:stages])

    def answer(wanted: Objective, limits: Sequence[float | None]) -> Solution | None:
        return _settled(used, lambda kept: _task(used, stages, wanted, limits, kept))

    return _chosen(used, answer, objective)


def placed(setting: PlannerInputs, cuts: Sequence[Sequence[str]], objective: Objective) -> Cut:
    """Place stages that are given.

    Raises:
        SpecError: they are no stages of this network.
        NoFeasiblePlan: the devices' memory does not suffice.
    """
    names = [device.name for device in setting.devices[: len(cuts)]]
    partition(setting.graph, cuts, names[:1])
    if len(names) in {1, len(cuts)}:
        return checked(setting, partition(setting.graph, cuts, names))
    kept = cuts[-1] if setting.last_stage_keeps_graph else ()

    def answer(wanted: Objective, limits: Sequence[float | None]) -> Solution | None:
        return find_place(_task(setting, None, wanted, limits, kept), cuts)

    return _chosen(setting, answer, objective, cuts)


def checked(setting: PlannerInputs, made: Partition) -> Cut:
    """Return stages whose devices are given, if memory suffices.

    Raises:
        NoFeasiblePlan: it does not.
    """
    limits = [device.memory_bytes for device in setting.devices]
    if any(limit is not None for limit in limits):
        held = _held(setting, made)
        over = [index for index, limit in enumerate(limits) if limit is not None and held[index] > limit]
        if over:
            raise _refused(setting, made, held, 1)
    return Cut(partition=made, guarantee="")


def resolved_schedule(setting: PlannerInputs, made: Partition) -> Schedule:
    """Return the schedule, with the least depths at full speed where these are asked for."""
    if setting.schedule != "auto":
        return setting.schedule
    return least_depths(setting.pipeline(setting.programs(made, "1f1b")))


def _task(
    setting: PlannerInputs,
    stages: int | None,
    objective: Objective,
    limits: Sequence[float | None],
    kept: Collection[str],
) -> PartitionProblem:
    whole = [None if limit is None else int(limit) for limit in limits]
    return partition_problem(setting, stages=stages, objective=objective, memory_bytes=whole, keeping_graphs=kept)


def _settled(setting: PlannerInputs, asked: Callable[[Collection[str]], PartitionProblem]) -> Solution | None:
    """Ask the solver until the last stage is the one that its task took for the last."""
    solution = find(asked(()))
    if not setting.last_stage_keeps_graph:
        return solution
    tried: list[tuple[float, Solution]] = []
    told: frozenset[str] = frozenset()
    for _ in range(_ROUNDS):
        if solution is None:
            break
        last = frozenset(solution.costs.stages[-1].items)
        honest = asked(last)
        tried.append((_value(honest, solution), solution))
        if last == told:
            break
        solution, told = find(honest), last
    return min(tried, key=lambda pair: pair[0])[1] if tried else None


def _value(honest: PartitionProblem, solution: Solution) -> float:
    """Return what a solution is worth where its own last stage keeps graphs."""
    stages = [[honest.index[name] for name in stage.items] for stage in solution.costs.stages]
    costs = cut_costs(honest, stages, [stage.device for stage in solution.costs.stages])
    return costs.tick_seconds if honest.objective == "balanced" else float(costs.peak_bytes)


def _chosen(
    setting: PlannerInputs, answer: _Answer, objective: Objective, cuts: Sequence[Sequence[str]] | None = None
) -> Cut:
    """Return the best proposal that keeps the limits, by the memory model."""
    limits = [device.memory_bytes for device in setting.devices]
    if objective == "balanced" and not any(limit is not None for limit in limits):
        solution = answer(objective, limits)
        assert solution is not None, "there are no limits"
        return Cut(partition=_partition(setting, solution, cuts), guarantee=solution.guarantee)
    proposals = list(_proposals(setting, answer, objective, cuts))
    fitting = [proposal for proposal in proposals if proposal.keeps(limits)]
    if not fitting:
        least = min(proposals, key=lambda proposal: max(_shares(proposal.held, limits)))
        raise _refused(setting, least.cut.partition, least.held, len(proposals))
    if objective == "balanced":
        return min(fitting, key=lambda proposal: proposal.tick_seconds).cut
    best = min(fitting, key=lambda proposal: (max(proposal.held), proposal.tick_seconds)).cut
    return evolve(best, guarantee=f"least memory on the fullest device, of {len(proposals)} cuts, by the memory model")


def _proposals(
    setting: PlannerInputs, answer: _Answer, objective: Objective, cuts: Sequence[Sequence[str]] | None
) -> Iterator[_Proposal]:
    """Yield the solver's cuts without limits, for time and for memory, and those with limits as they are corrected."""
    limits = [device.memory_bytes for device in setting.devices]
    free: list[float | None] = [None] * len(limits)
    latest = None
    for wanted in ("balanced", "memory"):
        solution = answer(wanted, free)
        assert solution is not None, "there are no limits"
        latest = _proposal(setting, solution, cuts)
        yield latest
        if wanted == objective == "balanced" and latest.keeps(limits):
            return
    for _ in range(_TRIES):
        if latest is None or not any(limit is not None for limit in limits):
            return
        solution = answer(objective, latest.corrected(limits))
        if solution is None:
            return
        before, latest = latest, _proposal(setting, solution, cuts)
        if latest.cut.partition == before.cut.partition:
            return
        yield latest


def _proposal(setting: PlannerInputs, solution: Solution, cuts: Sequence[Sequence[str]] | None) -> _Proposal:
    made = _partition(setting, solution, cuts)
    return _Proposal(
        cut=Cut(partition=made, guarantee=solution.guarantee),
        tick_seconds=solution.costs.tick_seconds,
        counted=solution.costs.device_bytes,
        held=_held(setting, made),
    )


def _partition(setting: PlannerInputs, solution: Solution, cuts: Sequence[Sequence[str]] | None) -> Partition:
    stages = cuts or [stage.items for stage in solution.costs.stages]
    devices = [setting.devices[stage.device].name for stage in solution.costs.stages]
    return partition(setting.graph, stages, devices)


def _held(setting: PlannerInputs, made: Partition) -> list[int]:
    """Return what every device would hold at most, by the memory model."""
    programs = setting.programs(made, resolved_schedule(setting, made))
    held = device_memory(programs, stage_memory(programs, setting.costs, transport=setting.transport))
    return [held[device.name].total if device.name in held else 0 for device in setting.devices]


def _shares(held: Sequence[int], limits: Sequence[int | None]) -> list[float]:
    return [0.0 if limit is None else used / limit for used, limit in zip(held, limits, strict=True)]


def _refused(setting: PlannerInputs, made: Partition, held: Sequence[int], tried: int) -> NoFeasiblePlan:
    """Return the error: the device that lacks most, its bytes, and the node that needs most of them."""
    limits = [device.memory_bytes for device in setting.devices]
    shares = _shares(held, limits)
    worst = max(range(len(shares)), key=lambda index: shares[index])
    device = setting.devices[worst]
    base = _task(setting, None, "memory", [None] * len(limits), ())
    nodes = [name for stage in made.stages if stage.device == device.name for name in stage.nodes]
    heaviest = max((base.items[base.index[name]] for name in nodes), key=lambda item: own_bytes(base, item))
    cuts = f"of {tried} cuts tried, none fits; in the nearest, " if tried > 1 else ""
    message = (
        f"{cuts}device {shown(device.name)} would hold {size_text(held[worst])} and may hold "
        f"{size_text(limits[worst] or 0)}; its largest node is {shown(heaviest.name)}, with "
        f"{size_text(own_bytes(base, heaviest))} by itself"
    )
    return NoFeasiblePlan(Problem(message=message, path=("partition", "memory")))

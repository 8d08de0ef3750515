"""Where to cut, and what goes where: the solver's answer, held against the memory model.

    setting --items--> solver --stages, devices--> memory model --too much on a device?--> solver, with less to give

The solver adds bytes up node by node; the memory model goes through the stages' own operations, and is right. Where it
finds that a device holds more than its limit, that device's limit is lowered for the solver by as much as it was
wrong, and the solver asked again.

Decision: a last stage that keeps graphs does less work, so more belongs into it, which is what the solver must know
before it cuts. It is asked until the last stage is the one that it was told of, and the best of its answers is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from attrs import evolve, frozen

from petra_graph.compiler.items import remedies, task
from petra_graph.compiler.memory import device_memory, stage_memory
from petra_graph.compiler.partition import partition
from petra_graph.compiler.setting import Setting
from petra_graph.compiler.simulation.depths import least_depths
from petra_graph.compiler.solve.evaluate import evaluate
from petra_graph.compiler.solve.search import Solution
from petra_graph.compiler.solve.solver import place, solve
from petra_graph.compiler.solve.task import Objective, Task
from petra_graph.errors import NoFeasiblePlan, Problem, SpecError
from petra_graph.program.partition import Partition
from petra_graph.spec.model import Schedule

_TRIES = 6
"""Of the solver, where the memory model disagrees."""
_ROUNDS = 4
"""Of the solver, to find the last stage that keeps graphs."""
_PATH = ("partition", "stages")


@frozen(kw_only=True)
class Cut:
    """Stages on devices, and how good that is."""

    partition: Partition
    guarantee: str
    """For people."""


def cut(setting: Setting, stages: int, objective: Objective) -> Cut:
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

    def answer(limits: Sequence[int | None]) -> Solution:
        return _settled(used, lambda kept: _task(used, stages, objective, limits, kept))

    return _within_limits(used, answer)


def placed(setting: Setting, cuts: Sequence[Sequence[str]], objective: Objective) -> Cut:
    """Place stages that are given.

    Raises:
        SpecError: they are no stages of this network.
        NoFeasiblePlan: the devices' memory does not suffice.
    """
    partition(setting.graph, cuts, ["any"])
    used = evolve(setting, devices=setting.devices[: len(cuts)])
    kept = cuts[-1] if setting.last_stage_keeps_graph else ()

    def answer(limits: Sequence[int | None]) -> Solution:
        base = _task(used, None, objective, limits, kept)
        return place(base, cuts, remedies(used, base))

    return _within_limits(used, answer, cuts)


def resolved_schedule(setting: Setting, made: Partition) -> Schedule:
    """Return the schedule, with the least depths at full speed where these are asked for."""
    if setting.schedule != "auto":
        return setting.schedule
    return least_depths(setting.pipeline(setting.programs(made, "1f1b")))


def _task(
    setting: Setting, stages: int | None, objective: Objective, limits: Sequence[int | None], kept: Collection[str]
) -> Task:
    return task(setting, stages=stages, objective=objective, memory_bytes=limits, keeping_graphs=kept)


def _settled(setting: Setting, asked: Callable[[Collection[str]], Task]) -> Solution:
    """Ask the solver until the last stage is the one that its task took for the last."""
    base = asked(())
    solution = solve(base, remedies(setting, base))
    if not setting.last_stage_keeps_graph:
        return solution
    tried: list[tuple[float, Solution]] = []
    told: frozenset[str] = frozenset()
    for _ in range(_ROUNDS):
        last = frozenset(solution.costs.stages[-1].items)
        honest = asked(last)
        tried.append((_value(honest, solution), solution))
        if last == told:
            break
        solution, told = solve(honest, remedies(setting, honest)), last
    return min(tried, key=lambda pair: pair[0])[1]


def _value(honest: Task, solution: Solution) -> float:
    """Return what a solution is worth where its own last stage keeps graphs."""
    stages = [[honest.index[name] for name in stage.items] for stage in solution.costs.stages]
    costs = evaluate(honest, stages, [stage.device for stage in solution.costs.stages])
    return costs.tick_seconds if honest.objective == "balanced" else float(costs.peak_bytes)


def _within_limits(
    setting: Setting, answer: Callable[[Sequence[int | None]], Solution], cuts: Sequence[Sequence[str]] | None = None
) -> Cut:
    """Ask the solver until the memory model agrees."""
    limits = [device.memory_bytes for device in setting.devices]
    for _ in range(_TRIES):
        solution = answer(limits)
        made = _partition(setting, solution, cuts)
        over = _excess(setting, made)
        if not over:
            return Cut(partition=made, guarantee=solution.guarantee)
        limits = [
            None if limit is None else int(limit * over.get(device.name, 1.0))
            for limit, device in zip(limits, setting.devices, strict=True)
        ]
    raise NoFeasiblePlan(
        Problem(
            message=f"the solver's cuts do not keep the memory limits of {', '.join(over)}, by the memory model",
            hint="allow a few per cent more, or use more devices or a smaller batch",
            path=("partition", "memory"),
        )
    )


def _partition(setting: Setting, solution: Solution, cuts: Sequence[Sequence[str]] | None) -> Partition:
    stages = cuts or [stage.items for stage in solution.costs.stages]
    devices = [setting.devices[stage.device].name for stage in solution.costs.stages]
    return partition(setting.graph, stages, devices)


def _excess(setting: Setting, made: Partition) -> dict[str, float]:
    """Return by how much to shrink the limits of devices that would hold more than they may."""
    limits = {device.name: device.memory_bytes for device in setting.devices if device.memory_bytes is not None}
    if not limits:
        return {}
    programs = setting.programs(made, resolved_schedule(setting, made))
    held = device_memory(programs, stage_memory(programs, setting.costs, transport=setting.transport))
    return {
        name: limits[name] / held[name].total for name in held if name in limits and held[name].total > limits[name]
    }

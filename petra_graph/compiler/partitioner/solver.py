"""Cutting and placing: what the planner calls.

solve            items into stages, on devices
place            stages that are there already, on devices
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve

from petra_graph.compiler.partitioner.evaluate import evaluate
from petra_graph.compiler.partitioner.problem import Item, ItemEdge, PartitionProblem
from petra_graph.compiler.partitioner.refuse import refusal
from petra_graph.compiler.partitioner.search import Solution, find


def solve(task: PartitionProblem, alternatives: Mapping[str, PartitionProblem] | None = None) -> Solution:
    """Return the best cut of a task into stages on its devices.

    Args:
        task: items, wires, devices, limits and objective.
        alternatives: where nothing fits, what else to try, by what was done for it ("schedule = 1f1b").

    Raises:
        NoFeasiblePlan: nothing found keeps the devices' limits; says what binds and which remedies work.
    """
    solution = find(task)
    if solution is None:
        raise refusal(task, alternatives or {})
    return solution


def place(
    task: PartitionProblem, stages: Sequence[Sequence[str]], alternatives: Mapping[str, PartitionProblem] | None = None
) -> Solution:
    """Return the best way to give `stages` to the task's devices, neighbours together, in the listed order.

    Without a limit that binds, and with as many devices as stages, each gets one. The stages' distances are known, so
    this is exact on any graph, among the placements that keep their order.

    Args:
        task: the items and devices; its number of stages does not count.
        stages: items by name, every one in one stage, in topological order.
        alternatives: where nothing fits, other tasks with items of the same names, for the same stages.

    Raises:
        NoFeasiblePlan: nothing keeps the devices' limits.
    """
    found = find_place(task, stages)
    if found is None:
        others = {label: _folded(other, stages) for label, other in (alternatives or {}).items()}
        raise refusal(_folded(task, stages), others)
    return found


def find_place(task: PartitionProblem, stages: Sequence[Sequence[str]]) -> Solution | None:
    """Return what `place` does, None where it refuses."""
    found = find(_folded(task, stages))
    if found is None:
        return None
    devices = [stage.device for stage in found.costs.stages for _ in stage.items]
    costs = evaluate(task, _places(task, stages), devices)
    return evolve(found, costs=costs, guarantee=f"{found.guarantee}, in the listed order of the stages")


def _places(task: PartitionProblem, stages: Sequence[Sequence[str]]) -> list[list[int]]:
    return [[task.index[name] for name in names] for names in stages]


def _label(stage: int) -> str:
    return f"stage {stage + 1}"


def _folded(task: PartitionProblem, stages: Sequence[Sequence[str]]) -> PartitionProblem:
    """Return the task whose items are `stages`, with all that they keep at their distances."""
    devices = task.devices[: len(stages)]
    free = [evolve(device, speed=1.0) for device in task.devices]
    costs = evaluate(evolve(task, devices=free), _places(task, stages), [0] * len(stages))
    stage_of = {name: _label(index) for index, names in enumerate(stages) for name in names}
    return PartitionProblem(
        items=[
            Item(
                name=_label(index),
                seconds=stage.seconds,
                resident_bytes=stage.resident_bytes + stage.buffer_bytes + stage.version_bytes,
                working_bytes=stage.working_bytes,
            )
            for index, stage in enumerate(costs.stages)
        ],
        wires=[
            ItemEdge(
                producer=stage_of[wire.producer],
                consumer=stage_of[wire.consumer],
                forward_bytes=wire.forward_bytes,
                backward_bytes=wire.backward_bytes,
            )
            for wire in task.wires
            if stage_of[wire.producer] != stage_of[wire.consumer]
        ],
        devices=devices,
        objective=task.objective,
        link=task.link,
        keeps_order=True,
    )

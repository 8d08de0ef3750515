"""Cutting and placing: what the planner calls.

solve            items into stages, on devices
place            stages that are there already, on devices
merging_saves    what fewer stages would give, where a device has several
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from petra_graph.compiler.solve.evaluate import Costs, Placed, evaluate
from petra_graph.compiler.solve.refuse import refusal
from petra_graph.compiler.solve.search import Solution, find
from petra_graph.compiler.solve.task import Item, Task, Wire


def solve(task: Task, alternatives: Mapping[str, Task] | None = None) -> Solution:
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


def place(task: Task, stages: Sequence[Sequence[str]], alternatives: Mapping[str, Task] | None = None) -> Solution:
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
    folded = _folded(task, stages)
    found = find(folded)
    if found is None:
        raise refusal(folded, {label: _folded(other, stages) for label, other in (alternatives or {}).items()})
    devices = [stage.device for stage in found.costs.stages for _ in stage.items]
    costs = evaluate(task, _places(task, stages), devices)
    return evolve(found, costs=costs, guarantee=f"{found.guarantee}, in the listed order of the stages")


@frozen(kw_only=True)
class Merging:
    """What one stage a device has less than several."""

    stages: int
    """How many there are."""
    merged_stages: int
    """How many there would be."""
    staleness: int
    """The first stage's, in micro-batches."""
    merged_staleness: int
    buffer_bytes: int
    """Of all stages."""
    merged_buffer_bytes: int
    version_bytes: int
    merged_version_bytes: int


def merging_saves(task: Task, costs: Costs) -> Merging:
    """Return what making every device's stages one would save in staleness, buffers and versions."""
    used = sorted({stage.device for stage in costs.stages})
    merged = [[name for stage in costs.stages if stage.device == device for name in stage.items] for device in used]
    after = evaluate(task, _places(task, merged), used)
    return Merging(
        stages=len(costs.stages),
        merged_stages=len(after.stages),
        staleness=_most_stale(costs.stages),
        merged_staleness=_most_stale(after.stages),
        buffer_bytes=sum(stage.buffer_bytes for stage in costs.stages),
        merged_buffer_bytes=sum(stage.buffer_bytes for stage in after.stages),
        version_bytes=sum(stage.version_bytes for stage in costs.stages),
        merged_version_bytes=sum(stage.version_bytes for stage in after.stages),
    )


def _most_stale(stages: Sequence[Placed]) -> int:
    return max(stage.staleness for stage in stages)


def _places(task: Task, stages: Sequence[Sequence[str]]) -> list[list[int]]:
    return [[task.index[name] for name in names] for names in stages]


def _label(stage: int) -> str:
    return f"stage {stage + 1}"


def _folded(task: Task, stages: Sequence[Sequence[str]]) -> Task:
    """Return the task whose items are `stages`, with all that they keep at their distances."""
    devices = task.devices[: len(stages)]
    free = [evolve(device, speed=1.0) for device in task.devices]
    costs = evaluate(evolve(task, devices=free), _places(task, stages), [0] * len(stages))
    stage_of = {name: _label(index) for index, names in enumerate(stages) for name in names}
    return Task(
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
            Wire(
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

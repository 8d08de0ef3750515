"""The search where stages are known beforehand: all of them, or the last one, which keeps graphs.

Decision: a last stage that keeps graphs does less work, so more nodes belong into it, and the solver must know its
nodes before it cuts. The solver runs again until the last stage of its solution is the one that its problem assumed;
the best solution is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from attrs import evolve

from petra_graph.compiler.partitioner.interval_costs import CutCosts, cut_costs
from petra_graph.compiler.partitioner.problem import Item, ItemEdge, PartitionProblem
from petra_graph.compiler.partitioner.search import find

_ROUNDS = 4
"""Runs of the solver, at most."""


def find_place(problem: PartitionProblem, stages: Sequence[Sequence[str]]) -> CutCosts | None:
    """Return the best way to give `stages` to the problem's devices, neighbours together, in the listed order.

    Without a limit that binds, and with as many devices as stages, each gets one. The stages' distances are known, so
    this is exact on any graph, among the placements that keep their order.

    Args:
        problem: the items and devices; its number of stages is ignored.
        stages: items by name, each in one stage, in topological order.

    Returns:
        The placement, None where none keeps the devices' limits.
    """
    positions = [[problem.index[name] for name in names] for names in stages]
    found = find(stages_as_items(problem, positions))
    if found is None:
        return None
    return cut_costs(problem, positions, [stage.device for stage in found.stages for _ in stage.items])


def stages_as_items(problem: PartitionProblem, stages: Sequence[Sequence[int]]) -> PartitionProblem:
    """Return the problem whose items are `stages`, with all that they keep at their distances."""
    costs = cut_costs(problem, stages, [0] * len(stages))
    devices = [
        evolve(
            device,
            item_seconds=tuple(sum(seconds[item] for item in items) + device.stage_seconds for items in stages),
            stage_seconds=0.0,
        )
        for device, seconds in zip(problem.devices, problem.device_seconds, strict=True)
    ]
    stage_of = {index: str(stage) for stage, items in enumerate(stages) for index in items}
    return PartitionProblem(
        items=[
            Item(
                name=str(index),
                resident_bytes=stage.resident_bytes + stage.buffer_bytes + stage.version_bytes,
                working_bytes=stage.working_bytes,
            )
            for index, stage in enumerate(costs.stages)
        ],
        edges=[
            ItemEdge(
                producer=stage_of[producer],
                consumer=stage_of[consumer],
                forward_bytes=edge.forward_bytes,
                backward_bytes=edge.backward_bytes,
            )
            for edge, (producer, consumer) in zip(problem.edges, problem.ends, strict=True)
            if stage_of[producer] != stage_of[consumer]
        ],
        devices=devices[: len(stages)],
        objective=problem.objective,
        link_bytes_per_second=problem.link_bytes_per_second,
        channel_capacity=problem.channel_capacity,
        keeps_order=True,
    )


def find_with_last_stage(problem_for: Callable[[Collection[str]], PartitionProblem]) -> CutCosts | None:
    """Return the best solution; None where the solver finds none.

    Args:
        problem_for: returns the problem in which some nodes form a last stage that keeps graphs.
    """
    solution = find(problem_for(()))
    tried: list[tuple[float, CutCosts]] = []
    assumed: frozenset[str] = frozenset()
    for _ in range(_ROUNDS):
        if solution is None:
            break
        last = frozenset(solution.stages[-1].items)
        problem = problem_for(last)
        tried.append((_value(problem, solution), solution))
        if last == assumed:
            break
        solution, assumed = find(problem), last
    return min(tried, key=lambda pair: pair[0])[1] if tried else None


def _value(problem: PartitionProblem, solution: CutCosts) -> float:
    """Return the objective of a solution under a problem whose last stage is the solution's."""
    stages = [[problem.index[name] for name in stage.items] for stage in solution.stages]
    costs = cut_costs(problem, stages, [stage.device for stage in solution.stages])
    return costs.tick_seconds if problem.objective == "balanced" else float(costs.peak_bytes)

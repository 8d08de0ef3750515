"""The solver for networks whose last stage keeps graphs.

Decision: a last stage that keeps graphs does less work, so more nodes belong into it, and the solver must know its
nodes before it cuts. The solver runs again until the last stage of its solution is the one that its problem assumed;
the best solution is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from petra_graph.compiler.partitioner.cut_costs import cut_costs
from petra_graph.compiler.partitioner.problem import PartitionProblem
from petra_graph.compiler.partitioner.search import Solution, find

_ROUNDS = 4
"""Runs of the solver, at most."""


def find_with_last_stage(problem_for: Callable[[Collection[str]], PartitionProblem]) -> Solution | None:
    """Return the best solution; None where the solver finds none.

    Args:
        problem_for: returns the problem in which some nodes form a last stage that keeps graphs.
    """
    solution = find(problem_for(()))
    tried: list[tuple[float, Solution]] = []
    assumed: frozenset[str] = frozenset()
    for _ in range(_ROUNDS):
        if solution is None:
            break
        last = frozenset(solution.costs.stages[-1].items)
        problem = problem_for(last)
        tried.append((_value(problem, solution), solution))
        if last == assumed:
            break
        solution, assumed = find(problem), last
    return min(tried, key=lambda pair: pair[0])[1] if tried else None


def _value(problem: PartitionProblem, solution: Solution) -> float:
    """Return the objective of a solution under a problem whose last stage is the solution's."""
    stages = [[problem.index[name] for name in stage.items] for stage in solution.costs.stages]
    costs = cut_costs(problem, stages, [stage.device for stage in solution.costs.stages])
    return costs.tick_seconds if problem.objective == "balanced" else float(costs.peak_bytes)

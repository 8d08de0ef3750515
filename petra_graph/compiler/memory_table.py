"""The memory model by stage and interval of nodes, on a chain with a device a stage.

    held[s][a, b]    bytes of stage s with the nodes from a to b - 1: parameters and optimizer state at first, which is a lower
                     bound, then what the memory model has found

On a chain, depths and the order of operations follow from a stage's place, and messages from its two ends: a stage holds the same in
every cut that gives it these nodes. So a dynamic program over this table finds the cut whose fullest device holds least, where
each of its entries has been found, and a cut to try next where one has not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from petra_graph.compiler.cuts import CutSpace, Stages
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.graph.node_graph import INPUT

Array = NDArray[np.float64]


def is_tabulable(inputs: PlannerInputs, space: CutSpace) -> bool:
    """Whether a stage's bytes follow from its place and its nodes."""
    later = inputs.graph.order[1:]
    return (
        space.one_order
        and len(space.edges) == space.count - 1
        and not any(INPUT in inputs.graph.nodes[name].inputs for name in later)
        and space.fixed is None
        and space.stages <= len(inputs.devices)
        and inputs.schedule != "auto"
    )


@define(kw_only=True, eq=False)
class MemoryTable:
    """What every stage holds with every interval of nodes, as far as it is known."""

    inputs: PlannerInputs
    stages: int
    held: list[Array] = field(init=False)
    """Of every stage; infinite where it cannot have these nodes."""

    def __attrs_post_init__(self) -> None:
        nodes = [self.inputs.costs.nodes[name] for name in self.inputs.graph.order]
        sizes = [node.parameter_bytes + node.statistics_bytes + node.optimizer_bytes for node in nodes]
        sums, count = np.append(0.0, np.cumsum(sizes)), len(nodes)
        first, last = np.indices((count + 1, count + 1))
        self.held = []
        for stage in range(self.stages):
            behind = self.stages - stage - 1
            possible = (first < last) & (first >= stage) & ((last <= count - behind) if behind else (last == count))
            for names in self.inputs.together:  # On a chain they are neighbours, between whom no stage ends.
                begin = self.inputs.graph.order.index(names[0])
                end = begin + len(names)
                possible &= ~((begin < first) & (first < end)) & ~((begin < last) & (last < end))
            self.held.append(np.where(possible, sums[last] - sums[first], np.inf))

    def found(self, stages: Stages, held_bytes: Sequence[int]) -> None:
        """Take what the memory model has found of a cut's stages."""
        bounds = np.searchsorted(stages, range(self.stages + 1))
        for stage, held in enumerate(held_bytes):
            self.held[stage][bounds[stage], bounds[stage + 1]] = held

    def least(self, parts: Sequence[float], limits: Sequence[float]) -> tuple[float, Stages]:
        """Return the cut whose largest entry is least, and that entry.

        Args:
            parts: what entries are divided by, of every stage.
            limits: entries above are not allowed, of every stage.
        """
        count = len(self.held[0]) - 1
        rest = np.where(np.arange(count + 1) == count, 0.0, np.inf)
        chosen = []
        for held, part, limit in list(zip(self.held, parts, limits, strict=True))[::-1]:
            allowed = np.isfinite(held) & (held <= limit)
            largest = np.maximum(np.divide(held, part, out=np.full_like(held, np.inf), where=allowed), rest)
            chosen.append(np.argmin(largest, axis=1))
            rest = largest.min(axis=1)
        first, stages = 0, []
        for stage, following in enumerate(reversed(chosen)):
            stages += [stage] * (int(following[first]) - first)
            first = int(following[first])
        return float(rest[0]), tuple(stages)

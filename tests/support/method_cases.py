"""The points of the method space, each computation once: the cases of tests that hold for every method.

A point is a method under one of its schedules; the list comes from `METHODS`, so that a new method is a case without a change here.

Points that compute the same are one case. What is computed is a value: the operations of every stage in their order, and the
segments with all that their runners read. Depth, flush and accumulation have no other effect than that order, and channels
have none. `cases` keeps the first of the points with equal computations on a graph and its stages, and `pairwise` chooses
among these.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any, Literal

import torch
from attrs import evolve, field, frozen

from petra_graph.compiler.lower import Lowering, MessageTypes, partition
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.measure.node_shapes import measure_shapes
from petra_graph.program.method import METHODS, Method, is_synchronous
from petra_graph.program.placement import Partition
from petra_graph.program.schedule import Action, depths, order
from petra_graph.program.stage_program import Segment
from petra_graph.spec.model import Flush, ScheduleName
from tests.support.pairwise import pairwise, thinned
from tests.support.pipelines import GRAPHS, SHAPES, Pipeline, built_graph, message_types, pipeline

Cuts = tuple[tuple[str, ...], ...]
Stages = Literal["one a node", "one a pair", "one"]
"""The stages of a graph."""


def cuts_of(graph: str, stages: Stages) -> Cuts:
    """Return the nodes of every stage."""
    names = tuple(table.name for table in GRAPHS[graph])
    if stages == "one":
        return (names,)
    if stages == "one a node":
        return tuple((name,) for name in names)
    odd = len(names) % 2
    return (*[names[:1]] * odd, *(names[first : first + 2] for first in range(odd, len(names), 2)))


@frozen(kw_only=True)
class Point:
    """A method under a schedule."""

    schedule: ScheduleName
    method: Method
    """Without a name, since it may be several methods'."""
    names: tuple[str, ...] = field(eq=False)
    """Of the methods."""

    @property
    def synchronous(self) -> bool:
        """Whether no parameter changes between a micro-batch's forward and its backward."""
        return is_synchronous(self.schedule, self.method.flush)

    @property
    def factors(self) -> dict[str, Hashable]:
        """The properties of which `pairwise` covers all pairs."""
        return {"method": self.names, "schedule": self.schedule}

    @property
    def settings(self) -> dict[str, Any]:
        """As `pipeline` takes them."""
        return {"method": self.names[0], "schedule": self.schedule}

    def __str__(self) -> str:
        """Write for the name of a test."""
        return f"{'='.join(self.names)} {self.schedule}"


def _points() -> Iterator[Point]:
    found: dict[Hashable, Point] = {}
    for name, own in METHODS.items():
        for schedule in own.schedules:
            if schedule == "auto":
                continue  # It chooses depths, of which these schedules are examples.
            method = evolve(own, name="", schedules=())
            before = found.get((method, schedule))
            names = (*(before.names if before else ()), name)
            found[method, schedule] = Point(schedule=schedule, method=method, names=names)
    return iter(found.values())


POINTS = tuple(_points())


@frozen(kw_only=True)
class MethodCase:
    """A point on one of the test pipelines' graphs."""

    point: Point
    graph: str
    stages: Stages
    accumulation: int

    @property
    def factors(self) -> dict[str, Hashable]:
        """The point's, and its own."""
        return {
            **self.point.factors,
            "graph": self.graph,
            "stages": self.stages,
            "accumulation": self.accumulation,
        }

    @property
    def cuts(self) -> Cuts:
        """The nodes of every stage."""
        return cuts_of(self.graph, self.stages)

    def __str__(self) -> str:
        """Write for the name of a test."""
        return f"{self.graph}, stages {self.stages}, k={self.accumulation}, {self.point}"

    def built(self, **settings: Any) -> Pipeline:
        """Return the case's pipeline."""
        return pipeline(
            GRAPHS[self.graph],
            SHAPES[self.graph],
            accumulation=self.accumulation,
            stages=self.cuts,
            **self.point.settings,
            **settings,
        )


def cases(
    allowed: Callable[[Point], bool],
    *,
    stages: Sequence[Stages] = ("one a node", "one a pair"),
    accumulations: Sequence[int] = (1,),
) -> list[MethodCase]:
    """Return a case for each distinct computation of the allowed points on all graphs, stages and accumulations."""
    found: dict[Hashable, MethodCase] = {}
    for graph, cut, accumulation, point in product(GRAPHS, stages, accumulations, filter(allowed, POINTS)):
        case = MethodCase(point=point, graph=graph, stages=cut, accumulation=accumulation)
        found.setdefault((graph, cut, accumulation, _computation(case)), case)
    return list(found.values())


def chosen(all_cases: Sequence[MethodCase], together: int = 2) -> list[MethodCase]:
    """Choose cases with every pair of factors, or every factor."""
    return pairwise(all_cases, lambda case: case.factors, together)


def chosen_parameters(all_cases: Sequence[MethodCase]) -> list[Any]:
    """Choose cases with every pair of factors as parameters of a test; those that no single factor needs are marked `thorough`."""
    pairs = chosen(all_cases)
    return thinned(pairs, chosen(pairs, 1))


@cache
def _computation(case: MethodCase) -> Hashable:
    """Return what decides the numbers that a case's stages compute, as a value; nothing that runs is built."""
    network, messages = _network(case.graph)
    schedule, method = case.point.schedule, case.point.method
    lowering = Lowering(graph=network, method=method, accumulation=case.accumulation, messages=messages)
    stages = _partition(case.graph, case.stages)
    depth = depths(schedule, [one.distance for one in stages.stages], case.accumulation)
    return tuple(
        (_operations(ahead, case.accumulation, method.flush), tuple(map(_of_segment, own)))
        for ahead, own in zip(depth, lowering.segments(stages, depth), strict=True)
    )


@cache
def _operations(depth: int, accumulation: int, flush: Flush) -> tuple[Action, ...]:
    """Return a stage's operations over three windows of which the last is short, and at least its depth."""
    return tuple(order(depth, range(max(3 * accumulation - 1, depth + 2)), accumulation, flush))


def _of_segment(segment: Segment) -> Segment:
    """Return a segment without what its runner does not read: a head always differentiates at once."""
    return evolve(segment, keeps="nothing", backward="current") if segment.kind == "head" else segment


@cache
def _partition(graph: str, stages: Stages) -> Partition:
    return partition(_network(graph)[0], cuts_of(graph, stages), ("cpu",))


@cache
def _network(graph: str) -> tuple[NodeGraph, MessageTypes]:
    network = built_graph(GRAPHS[graph])
    streams: Mapping[str, int] = {
        name: len(shapes.outputs) for name, shapes in measure_shapes(network, SHAPES[graph], torch.float32).items()
    }
    return network, message_types(streams)

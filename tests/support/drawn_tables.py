"""Small networks with random costs on random devices, and every way to cut and place them: what a search is judged by."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice, pairwise, permutations, product
from math import inf
from typing import get_args

from attrs import evolve, frozen

from petra_graph.compiler.lower import MessageTypes, partition
from petra_graph.compiler.memory import EncodedShare
from petra_graph.compiler.placement_search import Keep, place, resolved_placement
from petra_graph.compiler.planner_inputs import Clock, PlannerInputs
from petra_graph.compiler.timing import tick
from petra_graph.errors import NoFeasiblePlan
from petra_graph.graph.node_graph import INPUT, Node, NodeGraph
from petra_graph.program.channels import StreamType
from petra_graph.program.device_types import DEVICE_TYPES, Device, Link
from petra_graph.program.method import METHODS
from petra_graph.program.node_costs import CostTable, NodeCost, Operation, Work
from petra_graph.program.stage_program import Partition
from petra_graph.spec.model import BufferedKeeps, Keeps, Kind, RequestedSchedule
from tests.support.settings import UNITS

FLOAT = 4
SECONDS: Mapping[Operation, float] = {**UNITS, "update": 0.3, "copy": 0.2}


@frozen
class Table:
    """A problem: a network on devices, and into how many stages it is cut."""

    inputs: PlannerInputs
    stages: int

    def under(self, limits: Sequence[int | None]) -> Table:
        devices = (evolve(one, memory_bytes=limit) for one, limit in zip(self.inputs.devices, limits, strict=True))
        return evolve(self, inputs=evolve(self.inputs, devices=tuple(devices)))

    def placements(self) -> Iterator[Partition]:
        """Yield every cut on every choice of devices, each of which hosts neighbouring stages."""
        names = [device.name for device in self.inputs.devices]
        used = min(self.stages, len(names))
        runs = [[0, *ends, self.stages] for ends in combinations(range(1, self.stages), used - 1)]
        for cut, order, bounds in product(all_cuts(self.inputs.graph, self.stages), permutations(names, used), runs):
            hosts = [name for name, (a, b) in zip(order, pairwise(bounds), strict=True) for _ in range(a, b)]
            stages = partition(self.inputs.graph, cut, [""]).stages
            yield Partition(stages=tuple(evolve(stage, device=host) for stage, host in zip(stages, hosts, strict=True)))

    def choices(self, *, keep: bool) -> Iterator[tuple[list[int], float]]:
        """Yield what devices hold and the tick of every placement, with all that nodes may keep if that is open."""
        graph, every, seen = self.inputs.graph, [self.inputs], set()
        if keep:
            names = [name for name in graph.order if name != graph.head]
            mays = [get_args(Keeps if graph.nodes[name].kind == "reversible" else BufferedKeeps) for name in names]
            every = [evolve(self.inputs, kept=dict(zip(names, one, strict=True))) for one in product(*mays)]
        for stages, inputs in product(self.placements(), every):
            placement = resolved_placement(inputs, stages)
            programs = inputs.placed(placement)
            if programs not in seen:  # A delayed node may be asked for a graph that it cannot keep.
                seen.add(programs)
                yield inputs.held_bytes(placement), tick(inputs.pipeline(programs)).seconds

    def found(self, keep: Keep | None = None) -> float:
        """Return the tick of the placement that the search finds, which keeps the limits; infinite if it finds none."""
        try:
            placement = place(self.inputs, self.stages, keep)
        except NoFeasiblePlan:
            return inf
        assert self.inputs.fits(placement)
        return tick(self.inputs.pipeline(self.inputs.placed(placement))).seconds


def all_cuts(graph: NodeGraph, stages: int, done: frozenset[str] = frozenset()) -> Iterator[list[tuple[str, ...]]]:
    """Yield every list of stages in which none reads a later one."""
    rest = [name for name in graph.order if name not in done]
    for size in range(1, len(rest) - stages + 2) if stages > 1 else [len(rest)]:
        for stage in combinations(rest, size):
            if done.union(stage).issuperset(one for name in stage for one in graph.digraph.predecessors(name)):
                later = all_cuts(graph, stages - 1, done.union(stage)) if stages > 1 else [[]]
                yield from ([stage, *others] for others in later)


def drawn_table(seed: int, *, most: int, size: int = 7, keep: bool = False) -> Table:
    """Draw a table of up to `size` nodes, with few enough choices to try them all."""
    draw = random.Random(seed)
    while True:
        table = _drawn(draw, size)
        choices = 3 ** (len(table.inputs.graph.order) - 1) if keep else 1
        if table.stages > len(
            table.inputs.devices
        ):  # their time model is a simulation, with which depths are searched for
            choices = most if keep or table.inputs.schedule == "auto" else 10
        if 1 < sum(1 for _ in islice(table.placements(), most)) * choices < most:
            return table


def _drawn(draw: random.Random, size: int) -> Table:
    graph = _graph(draw, draw.randint(2, size), chain=draw.random() < 0.5)
    stages = draw.randint(1, min(5, len(graph.order)))
    method = METHODS[draw.choice(["petra"] * 3 + list(METHODS))]
    schedule: RequestedSchedule = draw.choice(method.schedules)
    latency, bandwidth = draw.choice([(0.0, 1e12), (1e-6, 1e12), (1e-3, 1e8), (1e-2, 1e7)])
    kinds = [DEVICE_TYPES[name] for name in draw.sample(sorted(DEVICE_TYPES), draw.choice([1, 3]))]
    devices = tuple(
        Device(
            name=f"d{index}",
            type=draw.choice(kinds),
            memory_bytes=None,
            link=Link(latency_seconds=latency, bytes_per_second=bandwidth),
        )
        for index in range(max(1, min(4, stages + draw.choice([-1, 0, 0, 1]))))
    )
    weight = {name: draw.choice([0.2, 0.5, 1, 1, 2, 5]) * draw.uniform(0.5, 1.5) for name in graph.order}
    clocks = {
        kind.name: Clock(
            device={
                name: {key: 1e-3 * weight[name] * one * draw.uniform(0.8, 1.2) / speed for key, one in SECONDS.items()}
                for name in graph.order
            }
        )
        for kind, speed in zip(kinds, (1, 2, 5), strict=False)
    }
    inputs = PlannerInputs(
        graph=graph,
        costs=_costs(draw, graph),
        method=method,
        schedule=schedule,
        accumulation=draw.choice([1, 1, 2, 4]),
        messages=MessageTypes(
            streams={name: (StreamType((draw.randint(1, 30) * 10_000,), "float32"),) for name in graph.order}
        ),
        transport=EncodedShare(),
        devices=devices,
        clocks={device.name: clocks[device.type.name] for device in devices},
        replicas=draw.choice([1, 1, 2]),
        allow_stored=draw.random() < 0.3,
    )
    return Table(inputs, stages)


def _graph(draw: random.Random, size: int, *, chain: bool) -> NodeGraph:
    names = [*(f"n{index}" for index in range(size - 1)), "head"]
    reads = [
        {index - 1} if chain else set(draw.choices(range(index), k=draw.choice([1, 1, 2])))
        for index in range(1, size - 1)
    ]
    inputs = [set[int](), *reads]
    inputs.append({index for index in range(size - 1) if not any(index in one for one in inputs)})
    kinds: list[Kind] = ["reversible" if len(own) == 1 and draw.random() < 0.6 else "buffered" for own in inputs[:-1]]
    nodes = [
        Node(
            name=name,
            block="drawn",
            plugin=None,
            kind=kind,
            inputs=tuple(names[index] for index in sorted(own)) or (INPUT,),
        )
        for name, kind, own in zip(names, [*kinds, "head"], inputs, strict=True)
    ]
    return NodeGraph(nodes={node.name: node for node in nodes})


def _costs(draw: random.Random, graph: NodeGraph) -> CostTable:
    sizes = {name: FLOAT * draw.randint(1, 20) * 10_000 for name in (*graph.order, INPUT)}
    nodes = {}
    for name, node in graph.nodes.items():
        read = tuple(sizes[producer] for producer in node.inputs)
        weights = FLOAT * draw.choice([0, 10_000, 100_000, 1_000_000])
        work = Work(working_bytes=draw.randint(1, 10) * 40_000, kept_bytes=draw.randint(1, 10) * 40_000)
        returned: dict[Operation, int] = {
            **dict.fromkeys(SECONDS, len(read)),
            "reverse": 2 * len(read),
            "first_update": len(read),
        }
        nodes[name] = NodeCost(
            kind=node.kind,
            parameters=weights // FLOAT,
            parameter_bytes=weights,
            gradient_bytes=weights,
            optimizer_bytes=weights,
            statistics=0,
            statistics_bytes=0,
            input_values=tuple(size // FLOAT for size in read),
            input_bytes=read,
            output_bytes=(sizes[name],),
            work={
                operation: evolve(work, shares=(None,) * (1 if operation in {"forward", "record"} else count))
                for operation, count in returned.items()
            },
        )
    return CostTable(micro_batch=1, sample_bytes=(sizes[INPUT],), target_bytes=8, nodes=nodes)

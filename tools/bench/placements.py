"""The planner against itself: its placements of random tables of costs against the best of all placements.

A table is a chain or a graph of up to 12 nodes with random seconds, bytes and links; alike or unlike devices, as many as
stages, spare ones or fewer; replicas, windows, schedules, methods, memory limits; stages to be cut, or given ones. For
each, every cut on every choice of devices, unlike ones in every order, is timed by the plan's own time model. What the plan says
of its cut must be true.

--keep       small tables under some memory limits: what nodes keep under `keep = "auto"` against all choices. "given": in given stages on
             a device each; "cut": together with every cut on every choice of devices
--limits     tables of up to 8 nodes and 4 devices, each under a dozen of memory limits: what may the planner refuse, and does it
             refuse under a limit what it finds under a smaller one
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations, islice, pairwise, permutations, product
from math import inf
from statistics import median
from typing import Any, get_args

import click
from attrs import evolve, frozen

from petra_graph.compiler.cut_search import held_bytes, keeps
from petra_graph.compiler.lower import MessageTypes, partition
from petra_graph.compiler.placement_search import cut_and_place, place_stages, resolved_placement, within_memory
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.prediction import Prediction
from petra_graph.compiler.simulator.steady_state import tick
from petra_graph.compiler.stage_memory import EncodedShare
from petra_graph.errors import NoFeasiblePlan
from petra_graph.graph.node_graph import INPUT, Node, NodeGraph
from petra_graph.planning.place.kept_by_node import place_and_keep
from petra_graph.program.device_types import DEVICE_TYPES, Device, Link
from petra_graph.program.message_layout import StreamType
from petra_graph.program.method import METHODS
from petra_graph.program.node_costs import CostTable, NodeCost, Operation, Work
from petra_graph.program.placement import Partition, Placement
from petra_graph.spec.model import Keeps, RequestedSchedule

_MOST_PLACEMENTS = 1_000
"""Tables with more are not drawn."""
_MOST_LIMITED = 250
"""The same under memory limits, which are tried on all placements at once."""
_MOST_KEPT = 4_000
"""Choices of what nodes keep, times placements."""
_SHARED = 10
_SHARED_AUTO = 100
"""One placement counts as so many where devices host several stages, whose time model is a simulation."""
_SUMMED = 20
"""Tables after which the sums so far are shown."""
_EQUAL = 1e-6
_NEAR = 1.01
_STORED = 0.3
"""Tables in which parameters may be stored."""
_UNITS: dict[Operation, float] = {
    "forward": 1.0, "reverse": 3.0, "recompute": 3.0, "record": 1.0, "replay": 2.0, "invert": 1.0, "forward_backward": 3.0,
    "update": 0.3, "copy": 0.2,
}  # fmt: skip
_RETURNS: dict[Operation, int] = {"forward": 1, "record": 1}
"""Streams that an operation returns; others return as many as there are inputs, or twice as many."""
_FLOAT = 4


@frozen(kw_only=True)
class Table:
    """A random problem."""

    inputs: PlannerInputs
    stages: int
    given: tuple[tuple[str, ...], ...] | None
    """Stages, where they are not to be cut."""
    facts: dict[str, Any]

    def placements(self) -> Iterator[Partition]:
        """Yield every cut on every choice of devices."""
        names = [device.name for device in self.inputs.devices]
        cuts = [self.given] if self.given is not None else all_cuts(self.inputs.graph, self.stages)
        may_differ = self.facts["unlike"] or self.facts["small"] or any(self.inputs.limits)
        chosen = permutations if may_differ else combinations
        orders = chosen(names, min(self.stages, len(names)))
        changes = list(combinations(range(1, self.stages), min(self.stages, len(names)) - 1))
        hosts = [_runs(order, [0, *change, self.stages]) for order in orders for change in changes]
        for cut in cuts:
            stages = partition(self.inputs.graph, cut, [""]).stages
            for devices in hosts:
                hosted = (evolve(stage, device=name) for stage, name in zip(stages, devices, strict=True))
                yield Partition(stages=tuple(hosted))

    def prediction(self, stages: Partition) -> Prediction:
        """Return both models' prediction."""
        return Prediction(inputs=self.inputs, placement=resolved_placement(self.inputs, stages))

    def held(self, stages: Partition) -> tuple[int, ...]:
        """Return the bytes of every device by the memory model."""
        held = self.prediction(stages).device_memory
        return tuple(held[device.name].total if device.name in held else 0 for device in self.inputs.devices)

    def seconds(self, stages: Partition) -> float:
        """Return the tick by the time model, infinite where a memory limit is broken."""
        limits = self.inputs.limits
        if any(limits) and not keeps(self.held(stages), limits):
            return inf
        return tick(self.prediction(stages).pipeline).seconds

    def under(self, limits: Sequence[int | None]) -> Table:
        """Return the table with other memory limits."""
        devices = (evolve(one, memory_bytes=limit) for one, limit in zip(self.inputs.devices, limits, strict=True))
        return evolve(self, inputs=evolve(self.inputs, devices=tuple(devices)))

    def planned(self) -> Placement:
        """Return the planner's placement."""
        if self.given is None:
            return cut_and_place(self.inputs, self.stages)
        return place_stages(self.inputs, partition(self.inputs.graph, self.given, [""]))


def _runs(names: Sequence[str], bounds: Sequence[int]) -> tuple[str, ...]:
    return tuple(name for name, (first, last) in zip(names, pairwise(bounds), strict=True) for _ in range(first, last))


def all_cuts(graph: NodeGraph, stages: int) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yield every list of stages in which none reads a later one."""
    for cut in _stages_after(graph, frozenset(), stages):
        yield tuple(tuple(name for name in graph.order if name in stage) for stage in cut)


def _stages_after(graph: NodeGraph, done: frozenset[str], missing: int) -> Iterator[tuple[frozenset[str], ...]]:
    if missing == 1:
        yield (frozenset(graph.order) - done,)
        return
    for stage in _next_stages(graph, done):
        if len(graph.order) - len(done) - len(stage) >= missing - 1:
            for later in _stages_after(graph, done | stage, missing - 1):
                yield (stage, *later)


def _next_stages(graph: NodeGraph, done: frozenset[str]) -> Iterator[frozenset[str]]:
    """Yield the sets of further nodes that read nothing but one another and the nodes that are done."""
    seen, waiting = set(), [frozenset[str]()]
    while waiting:
        chosen = waiting.pop()
        for name in graph.order:
            larger = chosen | {name}
            ready = done.union(chosen).issuperset(graph.digraph.predecessors(name))
            if ready and name not in done | chosen and larger not in seen:
                seen.add(larger)
                waiting.append(larger)
                yield larger


def drawn(seed: int, most_placements: int = _MOST_PLACEMENTS, *, small: bool = False) -> Table:
    """Draw a table with few enough placements to try them all; a small one has up to 8 nodes on up to 4 devices."""
    draw = random.Random(seed)
    while True:
        table = _drawn(draw, small=small)
        shared = table.stages > len(table.inputs.devices) > 1
        weight = (_SHARED_AUTO if table.inputs.schedule == "auto" else _SHARED) if shared else 1
        most = most_placements // (1 if small else weight)
        if sum(1 for _ in islice(table.placements(), most + 1)) <= most:
            return table


def _drawn(draw: random.Random, *, small: bool) -> Table:
    chain = draw.random() < 0.5
    size = draw.randint(2, 8) if small else draw.randint(3, 12)
    graph = _graph(draw, size, chain=chain)
    stages = draw.randint(1, size) if small else draw.randint(2, min(5, size))
    count = draw.randint(1, 4) if small else max(1, stages + draw.choice([0, 0, 0, 1, 2, -1]))
    given = draw.random() < 0.15 and count != stages
    unlike = draw.random() < 0.5 or (given and count > stages)
    method = METHODS[draw.choice(["petra"] * 5 + list(METHODS))]
    schedule: RequestedSchedule = draw.choice(method.schedules)
    if "auto" in method.schedules and draw.random() < 0.15:
        schedule = (*sorted((draw.randint(1, 2 * stages) for _ in range(stages - 1)), reverse=True), 1)
    accumulation = draw.choice([1, 1, 1, 2, 4, 8])
    replicas = draw.choice([1, 1, 1, 2, 8])
    slow = draw.random() < 0.4
    devices = _devices(draw, count, unlike=unlike, slow=slow)
    costs = _costs(draw, graph)
    if method.name == "petra":
        draw.random()  # so that the tables of a seed stay the same
    inputs = PlannerInputs(
        graph=graph,
        costs=costs,
        method=method,
        schedule=schedule,
        accumulation=accumulation,
        messages=MessageTypes(
            streams={name: (StreamType((draw.randint(1, 30) * 10_000,), "float32"),) for name in graph.order}
        ),
        transport=EncodedShare(),
        devices=devices,
        clocks=_clocks(draw, graph, devices),
        replicas=replicas,
    )
    stages_given = None
    if given:
        stages_given = draw.choice(list(all_cuts(graph, stages)))
    facts = {
        "nodes": size, "shape": "chain" if chain else "graph", "stages": stages, "devices": count,
        "small": small, "unlike": len({device.type.name for device in devices}) > 1, "slow links": slow, "method": method.name,
        "schedule": schedule if isinstance(schedule, str) else "listed", "k": accumulation, "replicas": replicas, "stages given": given,
    }  # fmt: skip
    table = Table(inputs=inputs, stages=stages, given=stages_given, facts=facts)
    if not small and draw.random() < 0.2:
        table = _limited(draw, table)
    return evolve(table, facts={**table.facts, "memory limit": any(table.inputs.limits)})


def _graph(draw: random.Random, size: int, *, chain: bool) -> NodeGraph:
    names = [*(f"n{index}" for index in range(size - 1)), "head"]
    inputs: list[set[int]] = [set() for _ in names]
    for index in range(1, size - 1):
        inputs[index] = {index - 1} if chain else set(draw.sample(range(index), min(index, draw.choice([1, 1, 2]))))
    unread = {index for index in range(size - 1) if all(index not in one for one in inputs)}
    inputs[-1] = unread | {size - 2}
    return NodeGraph(
        nodes={
            name: Node(
                name=name,
                block="drawn",
                plugin=None,
                options=None,
                kind="head"
                if name == "head"
                else "reversible"
                if len(own) == 1 and draw.random() < 0.6
                else "buffered",
                inputs=tuple(names[index] for index in sorted(own)) or (INPUT,),
            )
            for name, own in zip(names, inputs, strict=True)
        }
    )


def _costs(draw: random.Random, graph: NodeGraph) -> CostTable:
    values = {name: draw.randint(1, 20) * 10_000 for name in (*graph.order, INPUT)}
    nodes = {}
    for name, node in graph.nodes.items():
        parameters = draw.choice([0, 10_000, 100_000, 1_000_000])
        sizes = tuple(values[producer] for producer in node.inputs)
        work = Work(
            working_bytes=_FLOAT * draw.randint(1, 10) * 10_000, kept_bytes=_FLOAT * draw.randint(1, 10) * 10_000
        )
        nodes[name] = NodeCost(
            kind=node.kind,
            parameters=parameters,
            parameter_bytes=_FLOAT * parameters,
            gradient_bytes=_FLOAT * parameters,
            statistics=0,
            statistics_bytes=0,
            optimizer_bytes=_FLOAT * parameters,
            input_values=sizes,
            input_bytes=tuple(_FLOAT * size for size in sizes),
            output_bytes=(_FLOAT * values[name],),
            work={name: evolve(work, shares=(None,) * _RETURNS.get(name, len(sizes))) for name in _UNITS}
            | {"reverse": evolve(work, shares=(None,) * 2 * len(sizes)), "first_update": work},
        )
    return CostTable(micro_batch=1, sample_bytes=(_FLOAT * values[INPUT],), target_bytes=8, nodes=nodes)


def _devices(draw: random.Random, count: int, *, unlike: bool, slow: bool) -> tuple[Device, ...]:
    latency = draw.choice([0.0, 1e-4, 1e-3, 1e-2]) if slow else draw.choice([0.0, 1e-6])
    bandwidth = draw.choice([1e7, 1e8, 1e9]) if slow else 1e12
    kinds = [
        (DEVICE_TYPES[name], Link(latency_seconds=latency, bytes_per_second=bandwidth * draw.choice([1, 1, 2])))
        for name in draw.sample(sorted(DEVICE_TYPES), 3 if unlike else 1)
    ]
    chosen = [draw.choice(kinds) for _ in range(count)]
    return tuple(
        Device(name=f"d{index}", type=kind, memory_bytes=None, link=link) for index, (kind, link) in enumerate(chosen)
    )


def _clocks(draw: random.Random, graph: NodeGraph, devices: Sequence[Device]) -> dict[str, Any]:
    """Milliseconds, with other proportions on each kind of device."""
    weight = {name: draw.choice([0.2, 0.5, 1, 1, 1, 2, 5]) * draw.uniform(0.5, 1.5) for name in graph.order}
    clocks = {}
    for kind in dict.fromkeys(device.type.name for device in devices):
        speed = draw.choice([1.0, 1.0, 2.0, 5.0])
        table = {
            (name, operation): 1e-3 * weight[name] * unit * draw.uniform(0.8, 1.2) / speed
            for name in graph.order
            for operation, unit in _UNITS.items()
        }
        clocks[kind] = partial(_seconds, table)
    return {device.name: clocks[device.type.name] for device in devices}


def _seconds(table: dict[tuple[str, Operation], float], node: str, operation: Operation) -> float:
    return table.get((node, operation), 0.0)


def _limited(draw: random.Random, table: Table) -> Table:
    """Limit the devices' memory to somewhat less or more than what some placement needs."""
    placement = table.planned()
    prediction = Prediction(inputs=table.inputs, placement=placement)
    fullest = max(memory.total for memory in prediction.device_memory.values())
    return table.under([int(fullest * draw.choice([0.85, 0.95, 1.0, 1.2])) for _ in table.inputs.devices])


def refusals(seed: int, *, most_placements: int = _MOST_LIMITED) -> dict[str, Any]:
    """Place a small table under many memory limits, and compare what is refused with all placements."""
    table = drawn(seed, most_placements, small=True)
    placements = list(table.placements())
    held = [table.held(stages) for stages in placements]
    ticks = [table.seconds(stages) for stages in placements]
    counts = Counter[str]()
    found: dict[tuple[int | None, ...], bool] = {}
    wrong: list[Any] = []
    began = time.perf_counter()
    for limits in dict.fromkeys(_limits(random.Random(seed), held)):
        allowed = [one if keeps(own, limits) else inf for one, own in zip(ticks, held, strict=True)]
        best, under = min(allowed), table.under(limits)
        try:
            placement = under.planned()
        except NoFeasiblePlan as error:
            found[limits], says = False, error.problems[0].message
            faults = {"false refusals": int(best < inf)}
        else:
            found[limits], says = True, placement.guarantee
            tick_found = under.seconds(placement)
            faults = {
                "over a limit": tick_found == inf,
                "no such placement": best == inf > tick_found,
                "said what is not true": says != "" and not is_true(says, tick_found, allowed),
            }
        counts.update({"limits": 1, "refused": not found[limits]} | faults)
        wrong += [{"limits": limits, "fault": fault, "says": says} for fault, there in faults.items() if there]
    for limits, fits in found.items():
        if not fits and any(fits_there and _within(less, limits) for less, fits_there in found.items()):
            counts["refusals that a larger limit brings"] += 1
            wrong.append({"limits": limits, "fault": "refused what a smaller limit allows"})
    seconds = round(time.perf_counter() - began, 2)
    return {"table": seed, **table.facts, "placements": len(placements), **counts, "seconds": seconds, "wrong": wrong}


def _limits(draw: random.Random, held: Sequence[tuple[int, ...]]) -> Iterator[tuple[int | None, ...]]:
    """Yield limits for alike and for unlike memories, about those at which the first placements fit."""
    count = len(held[0])
    fullest = sorted({max(own) for own in held})
    yield from ((size,) * count for size in (fullest[0] - 1, fullest[0], *draw.sample(fullest, min(3, len(fullest)))))
    for _ in range(2):
        parts = [draw.choice([1.0, 1.0, 0.8, 0.5, 0.3, inf]) for _ in range(count)]
        if min(parts) < inf:
            least = min(max(size / part for size, part in zip(own, parts, strict=True)) for own in held)
            for times in (0.99, 1.0, draw.uniform(1.0, 1.5)):
                limits = tuple(None if part == inf else int(least * times * part) + 1 for part in parts)
                yield limits
            larger = draw.randrange(count)
            yield tuple(limit and int(limit * (1.3 if place == larger else 1.0)) for place, limit in enumerate(limits))


def _within(limits: Sequence[int | None], others: Sequence[int | None]) -> bool:
    """Whether no device may hold more than with other limits."""
    return all(b is None or (a is not None and a <= b) for a, b in zip(limits, others, strict=True))


def refusals_summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums over tables."""
    keys = (
        "placements", "limits", "refused", "false refusals", "refusals that a larger limit brings", "over a limit", "no such placement",
        "said what is not true",
    )  # fmt: skip
    most = {key: max(row[key] for row in rows) for key in ("nodes", "stages", "devices")}
    return {"tables": len(rows), "most": most} | {key: sum(row.get(key, 0) for row in rows) for key in keys}


def compared(seed: int, *, most_placements: int = _MOST_PLACEMENTS) -> dict[str, Any]:
    """Place a drawn table, and compare with the best of all placements."""
    table = drawn(seed, most_placements)
    row: dict[str, Any] = {"table": seed, **table.facts}
    began = time.perf_counter()
    try:
        placement = table.planned()
    except NoFeasiblePlan:
        placement = None
    row["planner seconds"] = round(time.perf_counter() - began, 4)
    ticks = [table.seconds(stages) for stages in table.placements()]
    best = min(ticks)
    row |= {"placements": len(ticks), "best tick": best if best < inf else None}
    if placement is None:
        return row | {
            "tick": None,
            "excess": None if best < inf else 0.0,
            "says": "no placement fits",
            "true": best == inf,
            "wrong": best < inf,
        }
    found = table.seconds(placement)
    row |= {"tick": found, "excess": found / best - 1, "says": placement.guarantee}
    row["true"] = is_true(placement.guarantee, found, ticks)
    row["wrong"] = row["excess"] > _EQUAL or not row["true"]
    return row


def is_true(says: str, found: float, ticks: Sequence[float]) -> bool:
    """Whether what a plan says of its tick holds against all placements; nothing said is true if stages have places."""
    counted = re.match(r"the smallest tick found, with (\d+) ", says)
    if counted is None:
        return says == "" and len(ticks) == 1
    return sum(one < found * (1 - _EQUAL) for one in ticks) <= len(ticks) - int(counted[1])


def kept(seed: int, *, cuts: bool = False, most: int = _MOST_KEPT) -> dict[str, Any]:
    """Let `keep = "auto"` choose for the nodes of a drawn table under some limits, and compare with all choices.

    Args:
        seed: of the table.
        cuts: search for the stages and their devices as well; otherwise one placement is drawn.
        most: choices times placements.
    """
    draw = random.Random(seed)
    while True:
        table = _drawn(draw, small=True)
        alone = table.stages <= len(table.inputs.devices)
        drawn = list(islice(table.placements(), _MOST_LIMITED)) if alone else []
        size = len(drawn) * 3 ** (len(table.inputs.graph.order) - 1)
        if drawn and (not cuts or (len(drawn) > 1 and size <= most)):
            break
    inputs = evolve(table.inputs, allow_stored=draw.random() < _STORED)
    placements, graph = drawn if cuts else [draw.choice(drawn)], inputs.graph
    names = [name for name in graph.order if name != graph.head]
    choices = [
        dict(zip(names, choice, strict=True))
        for choice in product(*(get_args(Keeps)[graph.nodes[name].kind == "buffered" :] for name in names))
    ]
    every: dict[Any, tuple[int, float]] = {}
    for stages, choice in product(placements, choices):
        asked = evolve(inputs, kept=choice)
        placement = resolved_placement(asked, stages)
        programs = asked.placed(placement)
        if programs not in every:
            every[programs] = max(held_bytes(asked, placement)), tick(asked.pipeline(programs)).seconds
    search = partial(_planned, table) if cuts else partial(within_memory, stages=placements[0])
    sizes = sorted({size for size, _ in every.values()})
    counts: Counter[str] = Counter()
    largest, began, wrong = 1.0, time.perf_counter(), list[Any]()
    for limit in (sizes[0] - 1, sizes[0], *draw.sample(sizes, min(4, len(sizes))), sizes[-1]):
        limited = evolve(inputs, devices=tuple(evolve(device, memory_bytes=limit) for device in inputs.devices))
        best = min((seconds for size, seconds in every.values() if size <= limit), default=inf)
        try:
            found = place_and_keep(limited, search, fill=True)
        except NoFeasiblePlan as error:
            counts.update({"refused": 1, "false refusals": int(best < inf)})
            wrong += [{"limit": limit, "fault": "false refusal", "says": str(error)}] if best < inf else []
            continue
        ratio = tick(Prediction(inputs=limited, placement=found).pipeline).seconds / best
        over = max(held_bytes(limited, found)) > limit
        counts.update({"chosen": 1, "best": ratio <= 1 + _EQUAL, "within 1 %": ratio <= _NEAR, "over a limit": over})
        largest = max(largest, ratio)
        if over or ratio > _NEAR:
            wrong.append({"limit": limit, "ratio": ratio, "says": found.guarantee, "over": over})
    seconds = round(time.perf_counter() - began, 2)
    return {
        "table": seed, **table.facts, "choices": len(every), **counts, "largest": largest, "seconds": seconds, "wrong": wrong,
    }  # fmt: skip


def _planned(table: Table, inputs: PlannerInputs) -> Placement:
    return evolve(table, inputs=inputs).planned()


def kept_summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums over tables."""
    keys = (
        "choices", "chosen", "best", "within 1 %", "over a limit", "refused", "false refusals", "seconds",
    )  # fmt: skip
    sums = {key: round(sum(row.get(key, 0) for row in rows), 2) for key in keys}
    return {"tables": len(rows), **sums, "largest of the best": max(row["largest"] for row in rows)}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how often the planner is the best, how far off it is otherwise, and whether its words are true."""
    excess = [row["excess"] for row in rows if row["excess"] is not None]
    off = sorted(value for value in excess if value > _EQUAL)
    return {
        "tables": len(rows),
        "best": len(excess) - len(off),
        "not the best": len(off),
        "excess where not the best": {"median": median(off), "largest": off[-1]} if off else None,
        "refused though a placement fits": sum(row["excess"] is None for row in rows),
        "said what is not true": sum(not row["true"] for row in rows),
        "placements tried by hand": sum(row["placements"] for row in rows),
        "planner seconds, median": median(row["planner seconds"] for row in rows),
        "planner seconds, most": max(row["planner seconds"] for row in rows),
        "of": {
            key: dict(Counter(str(row[key]) for row in rows)) for key in ("shape", "schedule", "unlike", "stages given")
        },
    }


@click.command()
@click.option("--tables", default=200, show_default=True)
@click.option("--first", default=0, show_default=True, help="Seed of the first table.")
@click.option("--limits", is_flag=True, help="Small tables under many memory limits.")
@click.option("--keep", type=click.Choice(["given", "cut"]), help="What nodes keep, in small tables under some limits.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(tables: int, first: int, limits: bool, keep: str | None, write: bool) -> None:
    rows = []
    one, sums, name = compared, summary, "placements"
    if limits:
        one, sums, name = refusals, refusals_summary, "memory_limits"
    if keep:
        one, sums, name = partial(kept, cuts=keep == "cut"), kept_summary, "kept"
    for seed in range(first, first + tables):
        rows.append(row := one(seed))
        if row["wrong"]:
            click.echo(json.dumps(row))
        if len(rows) % _SUMMED == 0:
            click.echo(json.dumps(sums(rows)), err=True)
    click.echo(json.dumps(sums(rows), indent=2))
    if write:
        from network import save

        click.echo(f"written: {save(name, {'summary': sums(rows), 'tables': rows})}", err=True)


if __name__ == "__main__":
    main()

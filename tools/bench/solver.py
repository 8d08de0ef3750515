"""The partitioner: how long it takes to cut random tables of costs, and how near to a bound its cuts of graphs are.

chain        every cut considered: optimal
branches     blocks of two arms of four items and a join: a few topological orders
links        messages take time beside work; otherwise they cost nothing
memory       limits that bind: a tenth more than the fullest device's least
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator

import attrs
import click
from network import save

from petra_graph.compiler.partitioner.lower_bound import tick_bound
from petra_graph.compiler.partitioner.problem import DepthRule, DeviceBudget, Item, ItemEdge, PartitionProblem
from petra_graph.compiler.partitioner.search import find

BLOCK = 10


@click.command()
@click.option("--size", "sizes", multiple=True, default=(1000, 10000), show_default=True, help="Items.")
@click.option("--devices", default=64, show_default=True)
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(sizes: tuple[int, ...], devices: int, write: bool) -> None:
    results = []
    for size in sizes:
        for name, problem in cases(size, devices):
            began = time.perf_counter()
            solution = find(problem)
            seconds = time.perf_counter() - began
            assert solution is not None
            result = {
                "case": name,
                "items": size,
                "devices": devices,
                "stages": problem.stage_count,
                "seconds": round(seconds, 2),
            }
            if problem.objective == "balanced":
                result["tick over bound"] = round(solution.tick_seconds / tick_bound(problem), 4)
            click.echo(json.dumps(result))
            results.append(result)
    if write:
        click.echo(f"written: {save('solver', {'results': results})}", err=True)


def cases(size: int, devices: int) -> Iterator[tuple[str, PartitionProblem]]:
    """Yield problems by name."""
    for shape, edges in (("chain", chain(size)), ("branches", branches(size))):
        plain = table(size, edges, devices)
        links = attrs.evolve(plain, link_bytes_per_second=1e6)
        yield shape, plain
        yield f"{shape}, links", links
        memory = attrs.evolve(links, objective="memory")
        yield f"{shape}, least memory", memory
        least = find(memory)
        assert least is not None
        limit = int(1.1 * least.peak_bytes)
        limited = [attrs.evolve(device, memory_bytes=limit) for device in plain.devices]
        yield f"{shape}, links, memory", attrs.evolve(links, devices=limited)
    yield "chain, two stages a device", table(size, chain(size), devices, stages=2 * devices)
    fast = [DeviceBudget(name=str(index), speed=1.0 + index % 3) for index in range(devices)]
    yield "chain, devices of three speeds", attrs.evolve(table(size, chain(size), devices), devices=fast)


def chain(size: int) -> list[tuple[int, int]]:
    return [(index, index + 1) for index in range(size - 1)]


def branches(size: int) -> list[tuple[int, int]]:
    """Blocks: an item, two arms of four, and the next block's item reads both."""
    edges = []
    for first in range(0, size - 1, BLOCK):
        if first + BLOCK >= size:
            edges += [(index, index + 1) for index in range(first, size - 1)]
            break
        edges += [(first, first + 1), *((first + index, first + index + 1) for index in range(1, 4))]
        edges += [(first, first + 5), *((first + index, first + index + 1) for index in range(5, 8))]
        edges += [(first + 4, first + 9), (first + 8, first + 9), (first + 9, first + 10)]
    return edges


def table(size: int, edges: list[tuple[int, int]], devices: int, stages: int | None = None) -> PartitionProblem:
    draw = random.Random(0)
    return PartitionProblem(
        items=[
            Item(
                name=str(index),
                seconds=draw.uniform(0.5, 2.0),
                resident_bytes=draw.randrange(10**6),
                buffer_bytes=draw.randrange(10**5) if draw.random() < 0.3 else 0,
                working_bytes=draw.randrange(10**7),
                joins=draw.random() < 0.5,
            )
            for index in range(size)
        ],
        edges=[
            ItemEdge(
                producer=str(a),
                consumer=str(b),
                forward_bytes=draw.randrange(10**6),
                backward_bytes=draw.randrange(10**6),
            )
            for a, b in edges
        ],
        devices=[DeviceBudget(name=str(index)) for index in range(devices)],
        stages=stages,
        depth_rule=DepthRule(schedule="lockstep"),
    )


if __name__ == "__main__":
    main()

"""The memory model by stage and interval: its lower bounds hold, and a stage holds the same in every cut that gives it these nodes."""

from __future__ import annotations

import pytest
from attrs import evolve

from petra_graph.compiler.memory_table import MemoryTable, is_tabulable
from petra_graph.compiler.placement_search import resolved_placement
from tests.compiler.test_cuts import space_of
from tests.support.pairwise import thinned
from tools.bench.placements import drawn


def tabulated(first, count):
    for seed in range(first, first + count):
        table = drawn(seed, 60, order="listed")
        inputs, space = table.inputs, evolve(space_of(table.inputs.graph, table.stages), fixed=table.given)
        if is_tabulable(inputs, space):
            placed = [resolved_placement(inputs, one) for one in table.placements()]
            yield table, MemoryTable(inputs=inputs, stages=table.stages), placed


@pytest.mark.parametrize("first", thinned(range(0, 60, 10), range(0, 60, 30)))
def test_bounds_hold_and_entries_are_the_same_in_all_cuts(first):
    found = 0
    for table, memory, placements in tabulated(first, 10):
        bounds = [own.copy() for own in memory.held]
        place = {device.name: index for index, device in enumerate(table.inputs.devices)}
        known = {}
        for placed in placements:
            every = table.held(placed)
            end = 0
            for stage, one in enumerate(placed.stages):
                begin, end = end, end + len(one.nodes)
                held = every[place[one.device]]
                assert bounds[stage][begin, end] <= held
                assert known.setdefault((stage, begin, end), held) == held
                found += 1
    assert found > 50


def test_the_least_of_what_is_known():
    table, memory, placements = next(one for one in tabulated(0, 60) if len(one[2]) > 5)
    every = [table.held(placed) for placed in placements]
    for placed in placements:
        cut = table.inputs.cut(placed)
        memory.found(cut.stages, [table.held(placed)[host] for host in cut.hosts])
    free = [1.0] * table.stages
    value, stages = memory.least(free, [float("inf")] * table.stages)
    assert value == min(map(max, every))
    assert stages in {
        table.inputs.cut(one).stages for one, own in zip(placements, every, strict=True) if max(own) == value
    }
    assert memory.least(free, [value - 1] * table.stages)[0] == float("inf")

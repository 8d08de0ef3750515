"""The lower bounds of ticks, by which cuts are called optimal, against the time model on random tables."""

from __future__ import annotations

import random

import pytest
from attrs import evolve

from petra_graph.compiler.cuts import cut_of
from petra_graph.compiler.device_selection import select
from petra_graph.compiler.node_seconds import node_table
from tests.support.pairwise import thinned
from tests.support.settings import setting
from tools.bench.placements import drawn

ROUNDING = 1 + 1e-9


def kept(seed, graph):
    """Draw what single nodes keep."""
    draw = random.Random(seed)
    keeps = {"reversible": ("nothing", "input", "graph"), "buffered": ("input", "graph")}
    return {name: draw.choice(keeps[graph.nodes[name].kind]) for name in graph.order if name != graph.head}


@pytest.mark.parametrize("first", thinned(range(0, 60, 10), range(0, 60, 30)))
def test_no_tick_is_below_its_bound(first):
    for seed in range(first, first + 10):
        table = drawn(seed, most_placements=40)
        if seed % 2:
            table = evolve(table, inputs=evolve(table.inputs, kept=kept(seed, table.inputs.graph)))
        inputs, order = table.inputs, table.inputs.graph.order
        place = {device.name: index for index, device in enumerate(inputs.devices)}
        selection = select(inputs, node_table(inputs), table.stages, table.given)
        for placed in table.placements():
            seconds = table.seconds(placed)
            hosts = [place[stage.device] for stage in placed.stages]
            cut = cut_of([stage.nodes for stage in placed.stages], hosts, order)
            assert selection.cut_bound.tick(cut) <= seconds * ROUNDING, (seed, cut)
            assert selection.bound <= seconds * ROUNDING, (seed, cut)


@pytest.mark.parametrize("schedule", ["auto", (3, 2, 1)])
def test_nodes_before_a_last_stage_that_keeps_graphs_have_no_part_in_its_discount(schedule):
    """Where depths are to be found or listed, the bound took all nodes to be in the last stage: 6 in place of 8."""
    used = setting(3, schedule=schedule, keep_graph=True)
    table = node_table(used)
    (seconds,) = set(table.on(used))
    assert seconds.before_last == (4.0, 4.0, 4.0, 4.0, 3.0)
    assert seconds.last == (3.0, 3.0, 3.0, 3.0, 3.0)
    assert select(used, table, 3, None).bound == pytest.approx(8.0)

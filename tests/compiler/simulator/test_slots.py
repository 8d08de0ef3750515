"""Slots: none too few, none too many."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import assume, given, settings

from petra_graph.compiler.simulator.deadlock import Deadlock
from petra_graph.compiler.simulator.describe import pipeline
from petra_graph.compiler.simulator.events import simulate
from petra_graph.compiler.simulator.model import Pipeline, StageSeconds
from petra_graph.compiler.simulator.slots import TOLERANCE, fewest_slots
from petra_graph.compiler.simulator.steady import tick
from petra_graph.program.devices import Link
from petra_graph.program.stage_program import Edge
from tests.compiler.simulator.pipelines import (
    SHORT,
    UNITS,
    chain,
    chains,
    channel,
    graph_programs,
    graphs,
    one_each,
    programs,
)
from tests.pipelines import SKIP


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("seconds", [UNITS, SHORT, StageSeconds(forward=1, backward=1)])
@pytest.mark.parametrize("stages", [2, 5, 18])
@pytest.mark.parametrize("schedule", ["lockstep", "1f1b"])
def test_two_do_for_equal_stages(schedule, stages, seconds, overlaps):
    found = fewest_slots(chain(stages, schedule, seconds, overlaps=overlaps))
    assert len(found) == 2 * (stages - 1)
    assert max(found.values()) <= 2


def test_one_does_where_nothing_overlaps():
    assert set(fewest_slots(chain(5, "sequential")).values()) == {1}


def test_a_hop_of_several_ticks_needs_the_messages_under_way():
    """Written in 1 (3) units, under way for 12, read in 1 (3), at 4 units a tick: 14 / 4 there, 18 / 4 back."""
    found = fewest_slots(chain(2, (8, 1), link=Link(latency_seconds=12)))
    assert found == {channel(1, "forward"): 4, channel(1, "backward"): 5}


def test_a_skip_edge_needs_what_is_in_flight_between_its_ends():
    """SKIP: rev0 (depth 5 of 1f1b) feeds rev1 and join (depth 3)."""
    made = graph_programs(SKIP)
    model = pipeline(made, [UNITS] * len(made), placement=one_each(made))
    found = fewest_slots(model)
    between = {
        edge: sum(found[each] for each in found if each.edge == edge)
        for edge in (Edge("rev0", "join"), Edge("rev0", "rev1"))
    }
    assert between[Edge("rev0", "join")] > between[Edge("rev0", "rev1")]
    one = dict.fromkeys(found, 1)
    assert tick(evolve(model, slots=found)).seconds == tick(model).seconds < tick(evolve(model, slots=one)).seconds


@pytest.mark.parametrize("apart", [2, 3, 5])
def test_ends_that_are_far_apart_in_depth_need_that_many_together(apart):
    """Fewer, in both directions together, wait for ever."""
    model = chain(2, (1 + apart, 1))
    found = fewest_slots(model)
    assert sum(found.values()) >= apart
    few = {channel(1, "forward"): 1, channel(1, "backward"): apart - 2}
    if apart > 2:
        with pytest.raises(Deadlock):
            simulate(evolve(model, slots=few), 20)


@settings(max_examples=40)
@given(chains(), graphs())
def test_none_can_have_one_less(one: Pipeline, other: Pipeline):
    for model in (one, other):
        unbounded = evolve(model, slots={})
        limit = tick(unbounded).seconds
        found = fewest_slots(model)
        kept = evolve(model, slots=found)
        assert tick(kept).seconds <= limit * (1 + 2 * TOLERANCE)
        simulate(kept, 3 * max(stage.depth for stage in model.stages) + 2 * model.accumulation)
        for each, slots in found.items():
            if slots > 1:
                try:
                    slower = tick(evolve(model, slots={**found, each: slots - 1})).seconds
                except Deadlock:
                    continue
                assert slower > limit * (1 + TOLERANCE / 2)


@settings(max_examples=10, deadline=None)
@given(graphs(slots=False, shared=True, overlaps=False))
def test_devices_that_host_several_stages_keep_their_tick(model: Pipeline):
    limit = tick(model)
    assume(limit.exact)
    found = fewest_slots(model)
    assert {each for each, hop in model.channels.items() if hop.link} == set(found)
    assert tick(evolve(model, slots=found)).seconds <= limit.seconds * (1 + 2 * TOLERANCE)


def test_edges_inside_a_device_need_none():
    model = pipeline(programs(4), [UNITS] * 4, placement="aabb")
    assert set(fewest_slots(model)) == {channel(2, "forward"), channel(2, "backward")}


def test_more_may_be_asked_for():
    assert set(fewest_slots(chain(4, "sequential"), at_least=2).values()) == {2}


def test_no_number_of_slots_helps_an_order_that_waits_for_ever():
    with pytest.raises(Deadlock):
        fewest_slots(chain(3, (2, 3, 1)))

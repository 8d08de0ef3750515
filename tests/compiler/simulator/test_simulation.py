"""The simulation keeps the orders that the runtimes execute, and the times that devices and links allow."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.compiler.simulator import outcome as drawn_in
from petra_graph.compiler.simulator.outcome import Deadlock, Event, Timeline
from petra_graph.compiler.simulator.pipeline import MessageBytes, Pipeline, StageSeconds
from petra_graph.compiler.simulator.simulation import simulate
from petra_graph.program.device_types import Link
from petra_graph.program.schedule import Action, order
from tests.support.schedule_drawing import drawn
from tests.support.simulated_pipelines import SHORT, UNITS, capacities, chain, chains, channel, graphs, programs, timed

COUNT = 9
WAYS = ("forward", "backward")

THREE_STAGES_OF_1F1B = """
    stage 1   F0 F1 F2 .  .  .  .  B0 -- F3 B1 -- .  B2 -- .  B3 --
    stage 2   .  F0 F1 .  .  B0 -- F2 B1 -- F3 B2 -- .  B3 -- .  .
    stage 3   .  .  F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 -- .  .  .  .
"""
TWO_WINDOWS_OF_GPIPE = """
    stage 1   F0 F1 F2 .  .  .  .  .  .  B0 -- B1 -- B2 -- F3 F4 F5 .  .  .  .  .  .  B3 -- B4 -- B5 --
    stage 2   .  F0 F1 F2 .  .  .  B0 -- B1 -- B2 -- .  .  .  F3 F4 F5 .  .  .  B3 -- B4 -- B5 -- .  .
    stage 3   .  .  F0 F1 F2 B0 -- B1 -- B2 -- .  .  .  .  .  .  F3 F4 F5 B3 -- B4 -- B5 -- .  .  .  .
"""
A_HOP_OF_ONE_UNIT = """
    stage 1   F0 F1 .  .  .  .  B0 -- F2 B1 -- F3 .  .  B2 -- .  B3 --
    stage 2   .  .  F0 B0 -- F1 B1 -- .  .  F2 B2 -- F3 B3 -- .  .  .
"""
A_LINK_THAT_IS_FULL = """
    stage 1   F0 F1 .  .  .  .  .  .  B0 -- F2 .  B1 -- F3 .  .  .  B2 -- .  .  B3 --
    stage 2   .  .  .  .  .  F0 B0 -- .  F1 B1 -- .  .  .  F2 B2 -- .  F3 B3 -- .  .
"""
AN_UPDATE_EVERY_TWO = """
    stage 1   F0 F1 .  .  B0 -- F2 B1 -- U  F3 B2 -- .  B3 -- U
    stage 2   .  F0 B0 -- F1 B1 -- U  F2 B2 -- F3 B3 -- U  .  .
"""
FORWARDS_AND_BACKWARDS_THAT_OVERLAP = """
    stage 1   F0 F1 F2 .  .  .  .  F3 .  .  F4 .  .  F5 .  .  .  .  .  .  .  .
              .  .  .  .  B0 -- -- B1 -- -- B2 -- -- B3 -- -- B4 -- -- B5 -- --
    stage 2   .  F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 -- F4 B4 -- F5 B5 -- .  .  .
"""
A_CAPACITY_OF_ONE = """
    stage 1   F0 .  F1 .  F2 .  .  B0 -- F3 .  B1 -- .  .  B2 -- .  .  B3 --
    stage 2   .  F0 .  F1 .  B0 -- F2 .  B1 -- F3 .  B2 -- .  .  B3 -- .  .
    stage 3   .  .  F0 B0 -- F1 .  B1 -- F2 .  B2 -- F3 .  B3 -- .  .  .  .
"""


@pytest.mark.parametrize(
    ("model", "count", "expected"),
    [
        (chain(3, "1f1b", SHORT), 4, THREE_STAGES_OF_1F1B),
        (chain(3, "fill-drain", SHORT, accumulation=3, flush="window"), 6, TWO_WINDOWS_OF_GPIPE),
        (chain(2, "1f1b", SHORT, link=Link(latency_seconds=1)), 4, A_HOP_OF_ONE_UNIT),
        (
            chain(2, "1f1b", SHORT, link=Link(bytes_per_second=1), message=MessageBytes(forward=4)),
            4,
            A_LINK_THAT_IS_FULL,
        ),
        (chain(2, "1f1b", StageSeconds(forward=1, backward=2, update=1), accumulation=2), 4, AN_UPDATE_EVERY_TWO),
        (chain(2, "lockstep", [UNITS, SHORT], overlap=True), 6, FORWARDS_AND_BACKWARDS_THAT_OVERLAP),
        (chain(3, "1f1b", SHORT, capacity={channel(j, way): 1 for j in (1, 2) for way in WAYS}), 4, A_CAPACITY_OF_ONE),
    ],
)
def test_drawn_by_hand(model, count, expected):
    assert drawn(simulate(model, count)) == expected


def test_the_docstring_draws_the_same_table():
    assert THREE_STAGES_OF_1F1B.strip("\n") in drawn_in.__doc__


def test_fill_and_drain_of_the_drawn_one():
    timeline = simulate(chain(3, "1f1b", SHORT), 4)
    assert (timeline.seconds, timeline.fill_seconds, timeline.drain_seconds) == (18, 2, 4)


def test_two_stages_on_one_device_take_turns_nearest_to_the_head_first():
    timeline = simulate(timed(programs(2), [SHORT] * 2, devices="aa"), 3)
    done = [f"{event.stage}{event.action}" for event in timeline.events if event.verb != "update"]
    assert done == ["1F0", "2F0", "2B0", "1F1", "2F1", "2B1", "1B0", "1F2", "2F2", "2B2", "1B1", "1B2"]


def of_stage(timeline: Timeline, stage: int) -> list[Event]:
    return [event for event in timeline.events if event.stage == stage]


MODELS = st.one_of(chains(capacity=False), graphs(capacity=False), graphs(capacity=False, shared=True, overlap=False))


@given(MODELS)
def test_each_stage_follows_its_order(model: Pipeline):
    timeline = simulate(model, COUNT)
    for stage in model.stages:
        expected = list(order(stage.depth, range(COUNT), stage.accumulation, stage.flush))
        found = [event.action for event in of_stage(timeline, stage.index)]
        if not model.overlap:
            assert found == expected
        for verb in ("forward", "backward", "update"):
            assert [a for a in found if a.verb == verb] == [a for a in expected if a.verb == verb]


@given(MODELS)
def test_a_device_does_one_thing_at_a_time_or_two(model: Pipeline):
    streams = defaultdict(list)
    for event in simulate(model, COUNT).events:
        streams[event.device, model.overlap and event.verb == "forward"].append(event)
    for events in streams.values():
        assert all(before.end <= after.start for before, after in pairwise(events))


@given(MODELS)
def test_nothing_is_read_before_it_has_come(model: Pipeline):
    timeline = simulate(model, COUNT)
    at = {(event.stage, event.action): event for event in timeline.events}
    for each, hop in model.channels.items():
        for m in range(COUNT):
            action = Action(each.direction, m)
            assert at[hop.receiver, action].start >= at[hop.sender, action].end + hop.seconds


@given(MODELS)
def test_what_overlaps_never_touches_the_numbers(model: Pipeline):
    """Whatever streams there are, a forward sees the updates that stand before it in the order, and no others."""
    timeline = simulate(model, COUNT)
    for stage in model.stages:
        at = {event.action: event for event in of_stage(timeline, stage.index)}
        before: list[Action] = []
        for action in order(stage.depth, range(COUNT), stage.accumulation, stage.flush):
            for other in before:
                if "update" in (action.verb, other.verb):
                    assert at[other].end <= at[action].start
            before.append(action)
        for m in range(COUNT):
            assert at[Action("forward", m)].end <= at[Action("backward", m)].start
            if m + stage.depth < COUNT:
                assert at[Action("backward", m)].end <= at[Action("forward", m + stage.depth)].start


@given(chains())
def test_no_more_messages_than_the_capacity(model: Pipeline):
    """A place is taken from the start of the operation that writes it until the end of the one that reads it."""
    try:
        timeline = simulate(model, COUNT)
    except Deadlock:
        return
    at = {(event.stage, event.action): event for event in timeline.events}
    for each, capacity in capacities(model).items():
        hop = model.channels[each]
        for m in range(capacity, COUNT):
            writes = at[hop.sender, Action(each.direction, m)]
            assert writes.start >= at[hop.receiver, Action(each.direction, m - capacity)].end


@given(graphs(shared=True))
def test_the_same_twice(model: Pipeline):
    def run():
        try:
            return simulate(model, COUNT)
        except Deadlock as deadlock:
            return str(deadlock)

    assert run() == run()


@given(st.data(), chains(overlap=False))
def test_nothing_ends_sooner_for_being_slower_or_having_less_capacity(data, model: Pipeline):
    """True of one stage a device, where no order depends on time."""
    slower = [
        evolve(stage, seconds=evolve(stage.seconds, forward=stage.seconds.forward + data.draw(st.sampled_from([0, 1]))))
        for stage in model.stages
    ]
    fewer = {each: data.draw(st.integers(1, capacity)) for each, capacity in capacities(model).items()}
    try:
        other = simulate(evolve(model, stages=tuple(slower)).with_capacity(fewer), COUNT)
    except Deadlock:
        return
    at = {(event.stage, event.action): event.end for event in simulate(model, COUNT).events}
    assert all(event.end >= at[event.stage, event.action] for event in other.events)


def test_depths_that_grow_wait_for_ever():
    with pytest.raises(Deadlock) as caught:
        simulate(chain(3, (2, 3, 1)), 5)
    assert str(caught.value) == (
        "this order would wait for ever: "
        "stage 1 waits to run the backward of micro-batch 0 for a message on channel n1 <- n2 from stage 2; "
        "stage 2 waits to run the forward of micro-batch 2 for a message on channel n1 -> n2 from stage 1\n"
        "    help: depths must not grow along an edge, and the last stage's is 1"
    )
    assert [(wait.stage, str(wait.action), wait.on) for wait in caught.value.waits] == [(1, "B0", 2), (2, "F2", 1)]


def test_too_little_capacity_waits_for_ever():
    """Ends that are three apart in depth, and two messages on their way."""
    with pytest.raises(Deadlock) as caught:
        simulate(chain(2, (4, 1), capacity={channel(1, "forward"): 1, channel(1, "backward"): 1}), 9)
    assert str(caught.value) == (
        "this order would wait for ever: "
        "stage 1 waits to run the forward of micro-batch 3 "
        "for room on channel n1 -> n2 (capacity 1), to be freed by stage 2; "
        "stage 2 waits to run the backward of micro-batch 1 "
        "for room on channel n1 <- n2 (capacity 1), to be freed by stage 1\n"
        "    help: give the channel more capacity, or its stages depths that differ by less"
    )


def test_a_head_that_runs_ahead_waits_for_ever_if_nothing_else_goes_first():
    """Depth 2 at the head alone: its second forward would come from a stage that waits for its backward."""
    with pytest.raises(Deadlock):
        simulate(chain(2, (1, 2)), 3)

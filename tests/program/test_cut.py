"""The cut through a running pipeline: what is done before it, and which messages cross it."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.program.cut import Cut, aligned
from petra_graph.program.schedule import order, program_order
from petra_graph.program.simulation import static_order
from tests.support.pipelines import GRAPHS
from tests.support.simulated_pipelines import any_programs, graph_programs

PROGRAMS = any_programs() | st.sampled_from([graph_programs(nodes, accumulation=2) for nodes in GRAPHS.values()])
DRAINS = st.builds(lambda start, count: range(start, start + count), st.integers(0, 3), st.integers(1, 9))


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    micro_batches = draw(DRAINS)
    return Cut(micro_batches=micro_batches, at=draw(st.integers(micro_batches.start, micro_batches.stop)))


@given(PROGRAMS, cuts())
def test_what_precedes_a_cut_is_what_stands_before_the_forward_behind_it(programs, cut):
    for program in programs:
        actions = list(program_order(program, cut.micro_batches))
        forward = (at for at, each in enumerate(actions) if (each.verb, each.micro_batch) == ("forward", cut.at))
        before = actions[: next(forward, len(actions))]
        assert [action for action in actions if cut.precedes(program, action)] == before
        assert cut.updates(program) == sum(action.verb == "update" for action in before)


@given(PROGRAMS, cuts())
def test_messages_in_flight_are_those_sent_before_a_cut_and_read_behind_it(programs, cut):
    flying = defaultdict(set)
    sent = defaultdict(int)
    for index, action in static_order(programs, cut.micro_batches):
        program = programs[index - 1]
        for channel in program.channels:
            sends = (index, action.verb) == (channel.sender, channel.key.direction)
            reads = (index, action.verb) == (channel.receiver, channel.key.direction)
            if (sends or reads) and cut.precedes(program, action):
                sent[channel.key] += sends
                flying[channel.key] ^= {action.micro_batch}
    for channel in {channel.key: channel for program in programs for channel in program.channels}.values():
        sender, receiver = programs[channel.sender - 1], programs[channel.receiver - 1]
        assert cut.sent(sender, channel) == sent[channel.key]
        crossing = cut.in_flight(sender, receiver) if channel.key.direction == "backward" else ()
        assert set(crossing) == flying[channel.key]


@given(st.integers(1, 6), st.integers(1, 3), DRAINS, st.data())
def test_backwards_before_a_cut_behind_which_the_pipeline_had_filled_again(depth, accumulation, micro_batches, data):
    """What was in flight before that forward was discarded, and counts as done."""
    filled = data.draw(st.integers(micro_batches.start, micro_batches.stop - 1))
    at = data.draw(st.integers(filled, micro_batches.stop - 1))
    actions = list(order(depth, micro_batches, accumulation, "drain", filled))
    (forward,) = (n for n, each in enumerate(actions) if (each.verb, each.micro_batch) == ("forward", at))
    done = sum(action.verb == "backward" for action in actions[:forward]) + filled - micro_batches.start
    assert Cut(micro_batches=micro_batches, at=at, filled=filled).backwards(depth, "drain") == done


@pytest.mark.parametrize(
    ("at", "flush", "expected"), [(9, "drain", 9), (9, "window", 11), (12, "window", 15), (22, "window", 22)]
)
def test_a_cut_of_a_flushed_pipeline_falls_behind_a_window_and_never_behind_the_epoch(at, flush, expected):
    assert aligned(at, 11, 4, flush) == expected

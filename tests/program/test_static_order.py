"""One order for the operations of several stages."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from petra_graph.program.schedule import program_order
from petra_graph.program.simulation import static_order
from tests.support.pipelines import GRAPHS, SHAPES, pipeline
from tests.support.simulated_pipelines import any_programs

MICRO_BATCHES = st.builds(lambda start, count: range(start, start + count), st.integers(0, 5), st.integers(1, 13))


def test_the_nearest_to_the_head_goes_first():
    stages = (("stem", "rev0"), ("rev1", "rev2", "head"))
    built = pipeline(GRAPHS["chain"], SHAPES["chain"], schedule="1f1b", accumulation=2, stages=stages)
    found = " ".join(f"{action}@{stage}" for stage, action in static_order(built.programs, range(3)))
    assert found == "F0@1 F0@2 B0@2 F1@1 F1@2 B1@2 U@2 B0@1 F2@1 F2@2 B2@2 U@2 B1@1 U@1 B2@1 U@1"


@given(any_programs(), MICRO_BATCHES)
def test_every_legal_choice_of_depths_ends(programs, micro_batches):
    """Each stage does its own order to the end, no message is read before it is sent, and no channel holds more than its capacity."""
    found = defaultdict(list)
    held: dict[object, int] = defaultdict(int)
    for stage, action in static_order(programs, micro_batches):
        found[stage].append(action)
        for channel in programs[stage - 1].channels:
            held[channel.key] += (channel.sender, channel.key.direction) == (stage, action.verb)
            held[channel.key] -= (channel.receiver, channel.key.direction) == (stage, action.verb)
            assert 0 <= held[channel.key] <= channel.capacity
    assert {stage: list(program_order(programs[stage - 1], micro_batches)) for stage in found} == found
    assert len(found) == len(programs)
    assert not any(held.values())

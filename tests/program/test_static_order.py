"""One order for the operations of several stages."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import capacity
from petra_graph.program.schedule import order, program_order, static_order
from petra_graph.program.stage_program import StageProgram
from tests.support.pipelines import GRAPHS, SHAPES, pipeline
from tests.support.simulated_pipelines import any_programs

CASES = st.tuples(
    st.sampled_from(sorted(GRAPHS)), st.sampled_from(["lockstep", "1f1b", "sequential"]), st.integers(1, 4)
)
MICRO_BATCHES = st.builds(lambda start, count: range(start, start + count), st.integers(0, 5), st.integers(1, 13))


@cache
def programs_of(graph: str, schedule: str, accumulation: int) -> tuple[StageProgram, ...]:
    built = pipeline(GRAPHS[graph], SHAPES[graph], schedule=schedule, accumulation=accumulation)
    return built.programs


def test_the_nearest_to_the_head_goes_first():
    stages = (("stem", "rev0"), ("rev1", "rev2", "head"))
    built = pipeline(GRAPHS["chain"], SHAPES["chain"], schedule="1f1b", accumulation=2, stages=stages)
    found = " ".join(f"{action}@{stage}" for stage, action in static_order(built.programs, range(3)))
    assert found == "F0@1 F0@2 B0@2 F1@1 F1@2 B1@2 U@2 B0@1 F2@1 F2@2 B2@2 U@2 B1@1 U@1 B2@1 U@1"


@given(CASES, MICRO_BATCHES)
def test_every_stage_keeps_its_own_order(case, micro_batches):
    programs = programs_of(*case)
    found = defaultdict(list)
    for stage, action in static_order(programs, micro_batches):
        found[stage].append(action)
    for program in programs:
        own = order(program.depth, micro_batches, program.accumulation, program.flush)
        assert found[program.index] == list(own)


@given(CASES, MICRO_BATCHES)
def test_every_operation_comes_after_what_it_needs(case, micro_batches):
    """Its messages have been sent, and of those it sends a channel never holds more than it has room for."""
    programs = programs_of(*case)
    place = {name: program for program in programs for name in program.nodes}
    edges = [edge for program in programs for edge in program.receives if edge.producer != INPUT]
    under_way: dict[object, int] = defaultdict(int)
    for stage, action in static_order(programs, micro_batches):
        for edge in edges if action.verb != "update" else ():
            ends = place[edge.producer], place[edge.consumer]
            sender, receiver = ends if action.verb == "forward" else ends[::-1]
            under_way[edge, action.verb] += (sender.index == stage) - (receiver.index == stage)
            assert 0 <= under_way[edge, action.verb] <= capacity(ends[0].depth, ends[1].depth)
    assert not any(under_way.values())


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

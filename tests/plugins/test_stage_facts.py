"""A stage's delay in closed form, and counted over its order of operations."""

from __future__ import annotations

from fractions import Fraction

from attrs import evolve
from hypothesis import assume, given
from hypothesis import strategies as st

from petra_graph.plugins import stage_facts
from petra_graph.plugins.stage_facts import DELAYED, StageFacts
from petra_graph.program.schedule import order

FACTS = {
    "depth": st.integers(1, 12),
    "accumulation": st.integers(1, 6),
    "micro_batches": st.integers(1, 40),
    "flush": st.sampled_from(["drain", "window"]),
}


def facts(**changes) -> StageFacts:
    return evolve(DELAYED, **changes)


def counted(stage: StageFacts, epoch: int) -> tuple[dict[int, int], list[list[int]]]:
    """Return d of each micro-batch that a stage trains in an epoch, and the micro-batches of each update."""
    start = epoch * stage.micro_batches
    micro_batches = range(start, start + stage.micro_batches)
    updates, at_forward, late, windows = 0, {}, {}, [[]]
    for action in order(stage.depth, micro_batches, stage.accumulation, stage.flush, stage.filled):
        match action.verb:
            case "forward":
                at_forward[action.micro_batch] = updates
            case "backward":
                late[action.micro_batch] = updates - at_forward[action.micro_batch]
                windows[-1].append(action.micro_batch)
            case "update":
                updates += 1
                windows.append([])
    return late, windows[:-1]


@given(**FACTS, epoch=st.integers(0, 3), filled=st.one_of(st.just(0), st.integers(0, 160)))
def test_the_closed_form_is_what_counting_gives(epoch, filled, **changes):
    stage = facts(**changes, filled=filled)
    late, windows = counted(stage, epoch)
    assert {m: stage.staleness(m) for m in late} == late
    assume(filled <= epoch * stage.micro_batches)
    for window in windows:
        mean = sum(late[m] for m in window) / len(window)
        assert stage.mean_staleness(range(window[0], window[-1] + 1)) == mean


@given(**FACTS, epochs=st.integers(1, 3))
def test_the_delay_of_each_update_of_a_run(epochs, **changes):
    stage = facts(**changes)
    means = []
    for epoch in range(epochs):
        late, windows = counted(stage, epoch)
        means += [sum(late[m] for m in window) / len(window) for window in windows]
    assert [stage.staleness_of_update(u) for u in range(len(means))] == means


@given(depth=st.integers(1, 12), accumulation=st.integers(1, 6), window=st.integers(0, 50))
def test_the_steady_delay_is_that_of_every_update_once_the_pipeline_is_full(depth, accumulation, window):
    stage = facts(depth=depth, accumulation=accumulation)
    u = depth // accumulation + 1 + window
    assert Fraction(stage.staleness_of_update(u)).limit_denominator(100) == Fraction(depth - 1, accumulation)
    assert stage.steady == (depth - 1) / accumulation


def test_the_docstring_has_the_same_table():
    stages = [facts(depth=depth, accumulation=2) for depth in (3, 2, 1)]
    rows = [
        f"    d, depth {stage.depth}    {'   '.join(str(stage.staleness(n)) for n in range(8))}" for stage in stages
    ]
    assert "\n".join(rows) in stage_facts.__doc__


def test_a_pipeline_that_fills_again_is_late_from_there_on():
    """In that epoch alone; the delay of an update by its number does not know of it."""
    stage = facts(micro_batches=10, filled=16)
    assert [stage.staleness(m) for m in range(16, 24)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert stage.staleness(9) == 3
    assert [stage.staleness_of_update(u) for u in range(16, 20)] == [3.0] * 4

"""The order of operations, as the tables in the module's docstring draw it, and what every order promises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.plugins.stage_facts import steady_staleness
from petra_graph.program import schedule
from petra_graph.program.schedule import depths, order
from petra_graph.program.weight_versions import WeightVersions


def depth(name: str, distance: int) -> int:
    return depths(name, [distance], 1)[0]


THREE_STAGES_OF_1F1B = """
    stage 1   F0 F1 F2 B0 F3 B1 U F4 B2 B3 U B4 U
    stage 2   F0 F1 B0 F2 B1 U F3 B2 F4 B3 U B4 U
    stage 3   F0 B0 F1 B1 U F2 B2 F3 B3 U F4 B4 U
"""
THREE_STAGES_OF_LOCKSTEP = """
    stage 1   F0 F1 F2 F3 F4 B0 U B1 U B2 U B3 U B4 U
    stage 2   F0 F1 F2 B0 U F3 B1 U F4 B2 U B3 U B4 U
    stage 3   F0 B0 U F1 B1 U F2 B2 U F3 B3 U F4 B4 U
"""
THREE_STAGES_OF_SEQUENTIAL = """
    stage 1   F0 B0 F1 B1 F2 B2 U F3 B3 F4 B4 U
    stage 2   F0 B0 F1 B1 F2 B2 U F3 B3 F4 B4 U
    stage 3   F0 B0 F1 B1 F2 B2 U F3 B3 F4 B4 U
"""


def table(schedule: str, accumulation: int, stages: int = 3, micro_batches: int = 5) -> str:
    rows = [
        " ".join(map(str, order(depth(schedule, stages - j), range(micro_batches), accumulation)))
        for j in range(1, stages + 1)
    ]
    return "".join(f"    stage {j}   {row}\n" for j, row in enumerate(rows, start=1))


@pytest.mark.parametrize(
    ("schedule", "accumulation", "expected"),
    [
        ("1f1b", 2, THREE_STAGES_OF_1F1B),
        ("lockstep", 1, THREE_STAGES_OF_LOCKSTEP),
        ("sequential", 3, THREE_STAGES_OF_SEQUENTIAL),
    ],
)
def test_tick_tables(schedule, accumulation, expected):
    assert table(schedule, accumulation) == expected.removeprefix("\n")


def test_the_docstring_draws_the_same_table():
    assert THREE_STAGES_OF_1F1B.strip("\n") in schedule.__doc__


@pytest.mark.parametrize(
    ("flush", "expected"),
    [("drain", "F3 F4 B3 U F5 B4 F6 B5 U B6 U"), ("window", "F3 B3 U F4 F5 B4 B5 U F6 B6 U")],
)
def test_a_pipeline_that_fills_anew_goes_on_with_its_windows(flush, expected):
    assert " ".join(map(str, order(2, range(7), 2, flush, filled=3))) == expected
    assert list(order(2, range(3, 7), 2, flush, filled=2)) == list(order(2, range(3, 7), 2, flush))


def test_a_window_does_not_cross_a_drain():
    """Three micro-batches, then three more: the second drain's windows start anew, whatever the first left."""
    drains = [range(3), range(3, 6)]
    assert [" ".join(map(str, order(1, each, 2))) for each in drains] == [
        "F0 B0 F1 B1 U F2 B2 U",
        "F3 B3 F4 B4 U F5 B5 U",
    ]


@given(st.integers(1, 12), st.integers(0, 50), st.integers(0, 30), st.integers(1, 9))
def test_every_micro_batch_goes_forward_and_backward_once_in_order_and_windows_end_in_updates(depth, first, count, k):
    """No more than `depth` are in flight, and as many once the pipeline is filled."""
    actions, expected = list(order(depth, range(first, first + count), k)), list(range(first, first + count))
    for verb in ("forward", "backward"):
        assert [action.micro_batch for action in actions if action.verb == verb] == expected
    flying, window, in_flight, windows = 0, 0, [0], []
    for action in actions:
        flying += {"forward": 1, "backward": -1, "update": 0}[action.verb]
        in_flight.append(flying)
        window += action.verb == "backward"
        if action.verb == "update":
            windows.append(window)
            window = 0
    assert (min(in_flight), max(in_flight), flying, window) == (0, min(depth, count), 0, 0)
    assert windows == [min(k, count - done) for done in range(0, count, k)]


@pytest.mark.parametrize(
    ("depth", "accumulation", "flush", "updates"),
    [(1, 1, "drain", 0), (5, 2, "drain", 2), (9, 1, "drain", 8), (5, 2, "window", 0)],
)
def test_staleness_while_the_pipeline_is_full(depth, accumulation, flush, updates):
    assert steady_staleness(depth, accumulation, flush) == updates


def test_a_version_is_copied_before_it_changes_and_dropped_with_its_last_user():
    copies = iter("ab")
    versions = WeightVersions(lambda: next(copies))
    versions.begin(0)
    versions.begin(1)
    assert versions.older(0) is None
    versions.before_step()
    assert (versions.older(0), versions.older(1), versions.copies) == ("a", "a", {0: "a"})
    assert versions.end(0) is None
    assert versions.end(1) == "a"
    assert not versions.copies
    versions.before_step()
    assert not versions.copies, "no micro-batch uses the version"


def test_a_kept_graph_has_its_copy_at_once():
    versions = WeightVersions(list)
    versions.begin(0)
    assert versions.copy_for(0) is versions.copy_for(0)
    assert versions.older(0) is None


@pytest.mark.parametrize(("depth", "accumulation"), [(1, 1), (5, 1), (5, 2), (9, 4)])
def test_there_are_at_most_as_many_copies_as_the_paper_counts(depth, accumulation):
    versions, most = WeightVersions(list), 0
    for action in order(depth, range(40), accumulation):
        match action.verb:
            case "forward":
                versions.begin(action.micro_batch)
            case "backward":
                versions.end(action.micro_batch)
            case "update":
                versions.before_step()
        most = max(most, len(versions.copies))
    assert most == -(-(depth - 1) // accumulation)
    assert not versions.copies

"""The planner against itself on a few tables: its tick, its words, and the study that tries all placements by hand."""

from __future__ import annotations

import pytest

from petra_graph.errors import NoFeasiblePlan
from tools.bench.placements import Table, compared, is_true, refusals, refusals_summary, summary


@pytest.mark.thorough
def test_the_planner_is_the_best_and_what_it_says_is_true():
    rows = [compared(seed, most_placements=150) for seed in range(10)]
    found = summary(rows)
    assert found["said what is not true"] == 0
    assert found["refused though a placement fits"] == 0
    assert found["best"] >= 9


@pytest.mark.thorough
def test_no_memory_limits_are_refused_that_a_placement_keeps():
    rows = [refusals(seed, most_placements=25) for seed in range(3)]
    found = refusals_summary(rows)
    assert found["refused"] > 5
    assert not any(row["wrong"] for row in rows)
    assert found["false refusals"] == found["refusals that a larger limit brings"] == 0


def test_a_planner_that_refuses_everything_is_found_out(monkeypatch):
    def refuse(_):
        raise NoFeasiblePlan("device d0 would hold too much")

    monkeypatch.setattr(Table, "planned", refuse)
    assert refusals(0, most_placements=60)["false refusals"] > 0


@pytest.mark.parametrize(
    ("says", "found", "expected"),
    [
        ("the smallest tick found, with 2 cuts timed", 1.1, True),
        ("the smallest tick found, with 3 cuts timed", 1.1, False),
        ("", 1.0, False),
    ],
)
def test_words_are_held_against_all_placements(says, found, expected):
    assert is_true(says, found, [1.0, 1.1, 1.2]) is expected

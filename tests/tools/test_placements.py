"""The planner against itself on a few tables: its tick, its words, and the study that tries all placements by hand."""

from __future__ import annotations

import pytest

from tools.bench.placements import compared, is_true, summary


def test_the_planner_is_the_best_and_what_it_says_is_true():
    rows = [compared(seed, any_order=False, most_placements=150) for seed in range(20)]
    found = summary(rows)
    assert found["said what is not true"] == 0
    assert found["refused though a placement fits"] == 0
    assert found["best"] >= 19
    assert found["said to be optimal"] >= 10


@pytest.mark.parametrize(
    ("says", "found", "expected"),
    [
        ("optimal: no cut has a smaller tick", 1.0, True),
        ("optimal: no cut has a smaller tick", 1.1, False),
        ("the smallest tick found, with 2 cuts timed, within 10.0% of a lower bound of all", 1.1, True),
        ("the smallest tick found, with 2 cuts timed, within 9.0% of a lower bound of all", 1.1, False),
        ("the smallest tick found, with 3 cuts timed, within 10.0% of a lower bound of all", 1.1, False),
        ("", 1.0, False),
    ],
)
def test_words_are_held_against_all_placements(says, found, expected):
    assert is_true(says, found, 1.0, [1.0, 1.1, 1.2]) is expected

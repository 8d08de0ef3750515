"""Rows that no other one beats, and the one that is recommended, against all pairs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from petra_graph_report.compare.compare_plans import recommend


def row(speed, stale=0.0, memory=100, fits=True):
    return {"samples_per_second": speed, "staleness": stale, "memory_peak": memory, "fits": fits}


def test_of_rows_that_are_about_as_fast_the_least_late_is_recommended():
    rows = [row(100, stale=2), row(96), row(97, stale=1), row(80)]
    assert recommend(rows) == 1
    assert [one["unbeaten"] for one in rows] == [True, True, True, False]


def test_a_row_that_does_not_fit_is_neither_recommended_nor_unbeaten():
    rows = [row(100, fits=False), row(None, memory=None), row(10)]
    assert recommend(rows) == 2
    assert [one["unbeaten"] for one in rows] == [False, False, True]
    assert recommend(rows[:2]) is None


def test_memory_decides_between_equals_and_is_not_known_everywhere():
    assert recommend([row(100, memory=200, fits=None), row(100, memory=100, fits=None)]) == 1


def test_between_equally_late_rows_that_are_about_as_fast_clearly_less_memory_decides():
    assert recommend([row(100, stale=1, memory=100), row(97, stale=1, memory=80), row(96, stale=1, memory=80)]) == 1
    assert recommend([row(100, memory=100), row(97, memory=95)]) == 0, "not clearly"
    assert recommend([row(100, memory=100), row(90, memory=50)]) == 0, "not about as fast"


ROWS = st.lists(
    st.builds(row, st.integers(1, 20), st.integers(0, 3), st.integers(1, 20), st.sampled_from((True, None, False))),
    min_size=1,
)


@given(ROWS)
def test_nothing_beats_what_is_unbeaten_and_something_beats_the_rest(rows):
    best = recommend(rows)
    usable = [one for one in rows if one["fits"] is not False]
    assert (best is None) == (not usable)
    for one in rows:
        beaten = any(
            other["samples_per_second"] >= one["samples_per_second"]
            and other["staleness"] <= one["staleness"]
            and other["memory_peak"] <= one["memory_peak"]
            and other != one | {"fits": other["fits"], "unbeaten": other["unbeaten"]}
            for other in usable
        )
        assert one["unbeaten"] == (one["fits"] is not False and not beaten)
    if best is not None:
        assert rows[best]["unbeaten"] or rows[best]["staleness"] == 0 or len(usable) > 1

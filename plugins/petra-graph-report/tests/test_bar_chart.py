"""Bars: names, totals, limits."""

from __future__ import annotations

from petra_graph_report.bar_chart import Bar, bars, row_names

from petra_graph.units import BINARY
from tests.support.html_page import Page

MIB = 2.0**20


def test_a_bar_has_its_name_its_total_and_its_limit():
    rows = [
        Bar(name="1  stem", parts=[(10 * MIB, "#0072b2"), (30 * MIB, "#e69f00")], limit=50 * MIB),
        Bar(name="2  head", parts=[(60 * MIB, "#0072b2")], limit=50 * MIB),
        Bar(name="3  small", parts=[(0.0, "#0072b2")]),
    ]
    made = bars(rows, BINARY, "memory")
    assert {"1  stem", "40 MiB of 50 MiB", "60 MiB of 50 MiB", "0 B", "20 MiB"} <= set(Page(made).texts)
    assert made.count("stroke: var(--bad)") == 2, "a line for each limit"


def test_names_have_the_room_that_they_need():
    """A third of a narrow page was empty before names, and bars began outside it."""
    narrow, wide = (row_names([letter * 30])[1] for letter in "iw")
    assert narrow < 130
    assert wide > 240


def test_a_limit_far_away_is_given_in_words_alone():
    made = bars([Bar(name="a", parts=[(MIB, "#0072b2")], limit=100 * MIB)], BINARY, "memory")
    assert "1 MiB of 100 MiB" in Page(made).texts
    assert "var(--bad)" not in made


def test_nothing_at_all():
    assert "0 B" in Page(bars([Bar(name="a", parts=[])], BINARY, "memory")).texts

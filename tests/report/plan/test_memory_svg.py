"""Bars of memory: their scale, and limits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from petra_graph.report.plan.document import PARTS
from petra_graph.report.plan.memory_svg import Row, bars, grid_steps

MIB = 2**20


def row(total: int, limit: int | None = None) -> Row:
    return Row(
        name="x", parts=dict.fromkeys([part.key for part in PARTS], 0) | {"working": total}, total=total, limit=limit
    )


@given(st.integers(1, 2**50))
def test_the_grid_has_a_few_even_steps_within_the_span(span):
    steps = grid_steps(span)
    assert steps[0] == 0
    assert 2 <= len(steps) <= 7
    assert steps[-1] <= span * (1 + 1e-9)


def test_grid_steps_are_round():
    assert grid_steps(300 * MIB) == [0, 100 * MIB, 200 * MIB, 300 * MIB]


def test_a_limit_within_reach_is_a_line():
    assert 'class="limit"' in bars([row(90 * MIB, limit=100 * MIB)])


def test_a_limit_far_away_stands_in_words():
    drawn = bars([row(90 * MIB, limit=40 * 1024 * MIB)])
    assert 'class="limit"' not in drawn
    assert ">90 MiB of 40 GiB</text>" in drawn


def test_too_little_memory_is_marked():
    drawn = bars([row(90 * MIB, limit=50 * MIB)])
    assert 'class="over"' in drawn
    assert 'class="limit"' in drawn


def test_stages_without_memory():
    assert ">0 B</text>" in bars([row(0)])

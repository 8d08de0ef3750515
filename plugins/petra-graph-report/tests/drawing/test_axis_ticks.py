"""Round values around those of a chart, written with as few digits as tell them apart."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.report.drawing.axis_ticks import axis_values, decades, linear_ticks, tick_texts, written
from petra_graph.units import BINARY, SECONDS

MIB = 2**20


@given(st.integers(1, 2**50))
def test_an_axis_has_a_few_even_steps_within_its_span(span):
    values = axis_values(0, span, BINARY, 5)
    assert values[0] == 0
    assert 2 <= len(values) <= 7
    assert values[-1] <= span * (1 + 1e-9)


def test_steps_are_round():
    assert axis_values(0, 300 * MIB, BINARY, 5) == [0, 100 * MIB, 200 * MIB, 300 * MIB]


def test_an_axis_need_not_begin_at_zero():
    assert axis_values(2.5, 8.2, SECONDS, 6) == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 9], ["0", "2", "4", "6", "8", "10"]),
        ([97.0, 98.5], ["97", "97.5", "98", "98.5"]),
        ([0.999, 1.0], ["0.999", "0.9992", "0.9994", "0.9996", "0.9998", "1"]),
        ([3.0], ["1", "2", "3", "4", "5"]),
        ([0.0, 0.0], ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ([1200, 2300], ["1,000", "1,500", "2,000", "2,500"]),
    ],
)
def test_ticks_of_a_linear_axis(values, expected):
    assert tick_texts(linear_ticks(values), "number") == expected


def test_ticks_of_shares():
    assert linear_ticks([1.0, 1.0], most=1.0)[-1] == pytest.approx(1.0)
    assert tick_texts(linear_ticks([0.2, 1.0]), "share") == ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]
    assert tick_texts([0.0, 0.5, 1.0], "share") == ["0 %", "50 %", "100 %"]


def test_ticks_of_a_logarithmic_axis():
    assert decades([0.06, 8.0]) == pytest.approx([0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10])
    assert decades([3e-5, 20.0]) == pytest.approx([1e-5, 1e-3, 1e-1, 1e1, 1e3])


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=5))
def test_ticks_reach_around_all_values(values):
    for ticks in (linear_ticks(values), decades(values)):
        assert ticks[0] <= min(values) * (1 + 1e-6)
        assert ticks[-1] >= max(values) * (1 - 1e-6)
        assert 2 <= len(ticks) <= 13
        assert all(one < other for one, other in pairwise(ticks))


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5))
def test_a_linear_axis_has_room_for_values_of_either_sign(values):
    ticks = linear_ticks(values)
    margin = 1e-6 * (ticks[-1] - ticks[0])
    assert ticks[0] - margin <= min(values) <= max(values) <= ticks[-1] + margin
    assert 2 <= len(ticks) <= 13


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.98889, "share", "98.89 %"),
        (1.0, "share", "100 %"),
        (0.06871, "number", "0.0687"),
        (5.2e-6, "number", "5.2e-06"),
        (2356.7, "number", "2,357"),
        (188_400.0, "number", "188 k"),
        (0.0, "number", "0"),
    ],
)
def test_values(value, unit, text):
    assert written(value, unit) == text

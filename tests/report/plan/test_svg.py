"""Elements are escaped; axes have round values at even steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from petra_graph.report.plan.svg import axis_values, tag
from petra_graph.report.plan.units import BINARY, SECONDS

MIB = 2**20


def test_texts_and_attributes_are_escaped_and_elements_are_not():
    inner = tag("b", "<i>", title='"x" & y')
    assert inner == '<b title="&#34;x&#34; &amp; y">&lt;i&gt;</b>'
    assert tag("g", inner, "&", stroke_width=1.5, class_="a") == f'<g stroke-width="1.5" class="a">{inner}&amp;</g>'


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

"""Elements are escaped; axes have round values at even steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.report.drawing.svg_markup import axis_values, fitted, tag, text_width
from petra_graph.units import BINARY, SECONDS

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


# As a browser measured them in DejaVu Sans, the widest of the page's fonts, at 100 pixels.
MEASURED = {"WWWW": 395.5, "layer3.4": 409.9, "392 MiB": 405.3, "cuda:17": 404.1, "stage 100, depth 201": 1077.5}


@pytest.mark.parametrize(("text", "width"), MEASURED.items())
def test_a_texts_width_is_not_underestimated(text, width):
    assert width <= text_width(text, 100) <= 1.15 * width


@given(st.text(max_size=30), st.floats(5, 300))
def test_what_is_fitted_fits(text, width):
    assert text_width(fitted(text, width, 10), 10) <= width

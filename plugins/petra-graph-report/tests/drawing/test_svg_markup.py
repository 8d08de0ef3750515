"""Elements are escaped, and texts fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.report.drawing.svg_markup import fitted, tag, text_width


def test_texts_and_attributes_are_escaped_and_elements_are_not():
    inner = tag("b", "<i>", title='"x" & y')
    assert inner == '<b title="&#34;x&#34; &amp; y">&lt;i&gt;</b>'
    assert tag("g", inner, "&", stroke_width=1.5, class_="a") == f'<g stroke-width="1.5" class="a">{inner}&amp;</g>'


# As a browser measured them in DejaVu Sans, the widest of the page's fonts, at 100 pixels.
MEASURED = {"WWWW": 395.5, "layer3.4": 409.9, "392 MiB": 405.3, "cuda:17": 404.1, "stage 100, depth 201": 1077.5}


@pytest.mark.parametrize(("text", "width"), MEASURED.items())
def test_a_texts_width_is_not_underestimated(text, width):
    assert width <= text_width(text, 100) <= 1.15 * width


@given(st.text(max_size=30), st.floats(5, 300))
def test_what_is_fitted_fits(text, width):
    assert text_width(fitted(text, width, 10), 10) <= width

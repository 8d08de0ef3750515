"""Line charts: what their legends, axes and notes say."""

from __future__ import annotations

import re

import pytest
from petra_graph_report.line_chart import Chart, Line

from tests.support.html_page import Page


def chart(*lines, **values):
    return Chart(**{"title": "loss", "x_name": "epoch", "lines": lines} | values)


def texts(made):
    return [text.strip() for text in Page(made.drawing).texts if text.strip()]


def test_a_legend_has_the_last_values():
    made = chart(Line(name="train", points=[(1, 2.0), (2, 1.25)]), Line(name="test", points=[(1, 12345.6)], style=1))
    assert {"train: 1.25", "test: 12,346", "epoch"} <= {*texts(made)}
    assert 'aria-label="loss: train: 1.25, test: 12,346"' in made.drawing
    shares = chart(Line(name="test", points=[(1, 0.5), (2, 0.98765)]), shares=True)
    assert "test: 98.77 %" in texts(shares)
    assert any(re.fullmatch(r"\d+ %", text) for text in texts(shares))


def test_over_other_things_than_time_a_legend_has_names_alone():
    """The value at the largest learning rate stood beside a method as if it were the method's."""
    made = chart(Line(name="petra", points=[(0.01, 0.9), (0.2, 0.5)]), x_name="lr", ends=False)
    assert "petra" in texts(made)


def test_points_have_shapes_and_no_lines():
    """Single points were small circles, told apart by their colours alone, beside lines in the legend."""
    made = chart(*(Line(name=name, points=[(1, 2.0)], style=at) for at, name in enumerate("abc")))
    assert "stroke-dasharray" not in made.drawing
    assert len(set(re.findall(r'<path id="[^"]*" d="([^"]*)"', made.drawing))) >= 3


def test_numbers_of_a_text_keep_their_digits():
    """Decimals of coordinates are cut, and 0.05798 of a legend was 0.05."""
    assert "test: 0.05798" in texts(chart(Line(name="test", points=[(1, 1.0), (2, 0.05798)])))


def test_an_axis_may_name_its_values():
    made = chart(Line(name="", points=[(0.01, 1.0), (0.03, 2.0), (0.1, 3.0)]), x_at=[0.01, 0.03, 0.1])
    assert {"0.01", "0.03", "0.1"} <= {*texts(made)}


def test_a_line_without_a_name_has_no_legend():
    assert set(texts(chart(Line(name="", points=[(1, 2.0), (2, 1.0)])))) >= {"1", "2", "epoch"}
    assert "1.0" not in texts(chart(Line(name="", points=[(1, 2.0), (2, 1.0)])))


def test_values_over_decades_have_a_logarithmic_axis():
    line = Line(name="", points=[(1, 1e-6), (2, 1.0)])
    assert chart(line, logarithmic_from=30.0, note="of all").notes == "of all, logarithmic"
    assert "1e-06" in texts(chart(line, logarithmic_from=30.0))
    for other in ([(1, 1.0), (2, 29.0)], [(1, 0.0), (2, 1.0)], [(1, -1.0), (2, 1.0)]):
        assert chart(Line(name="", points=other), logarithmic_from=30.0).notes == ""
    banded = Line(name="", points=[(1, 1.0)], band=[(1, 0.01, 1.0)])
    assert chart(banded, logarithmic_from=30.0).logarithmic


@pytest.mark.parametrize(
    "points", [[(1, 0.0)], [(3, -3.5e9)], [(1, 5.0), (2, 5.0)], [(x, 1 / (x + 1)) for x in range(99)]]
)
def test_whatever_the_values_are_there_is_a_drawing(points):
    assert texts(chart(Line(name="one", points=points), from_zero=True))


def test_many_lines_are_told_apart():
    """By colour, dashes and marks together; each name has a place of its own in the legend."""
    made = chart(*(Line(name=f"lr={place}", points=[(1, place), (2, place)], style=place) for place in range(26)))
    assert [text for text in texts(made) if text.startswith("lr=")] == [f"lr={at}: {at}" for at in range(26)]
    assert len(set(re.findall(r'style="(fill: none; [^"]*--(?:series|accent)[^"]*)"', made.drawing))) == 26


def test_a_band_is_filled():
    line = Line(name="a", points=[(1, 1.0), (2, 2.0)], band=[(1, 0.5, 1.5), (2, 1.5, 2.5)])
    assert chart(line).drawing.count("opacity: 0.2") == 1
    assert "opacity: 0.2" not in chart(Line(name="a", points=[(1, 1.0)])).drawing

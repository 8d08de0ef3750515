"""Line charts: nothing is outside the drawing or over anything else, and lines are told apart."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from petra_graph.report.drawing.line_chart import Chart, Line, draw, spaced, thinned
from petra_graph.report.drawing.svg_markup import text_width


def test_labels_keep_their_order_and_a_distance():
    assert spaced([100, 101, 20], 10, 190) == [100, 113, 20]
    assert spaced([190, 189, 10], 10, 190) == [190, 177, 10]


def test_a_name_comes_before_its_value_where_both_are_too_long():
    lines = [Line(name=name, points=[(1, 0.5), (2, 0.5451)]) for name in ("petra", "method=backprop")]
    drawing = draw(Chart(title="loss", lines=lines, x_name="epoch"))
    assert ">petra 0.545<" in drawing
    assert ">method=backprop<" in drawing


def test_many_points_become_means_in_a_band():
    points = [(float(x), float(x % 2)) for x in range(10)]
    means, band = thinned(points, 5)
    assert means == [(x, 0.5) for x in (1, 3, 5, 7, 9)]
    assert band == [(x, 0.0, 1.0) for x in (1, 3, 5, 7, 9)]
    assert thinned(points, 10) == (points, ())


CHARTS = {
    "one point": Chart(title="loss", lines=[Line(name="train", points=[(1, 2.5)])], x_name="epoch"),
    "two lines that end together": Chart(
        title="top1",
        lines=[Line(name=name, points=[(1, 0.1), (2, 1.0)], style=at) for at, name in enumerate(("train", "test"))],
        x_name="epoch",
        unit="share",
    ),
    "logarithmic, with a band": Chart(
        title="loss",
        lines=[Line(name="A", points=[(1, 24.6), (9, 0.03)], band=[(1, 10.0, 40.0), (9, 0.02, 0.05)])],
        x_name="epoch",
        logarithmic_from=30,
    ),
    "twenty lines with long names": Chart(
        title="loss",
        lines=[Line(name=f"{'name ' * 9}{at}", points=[(0, 0), (9, 1)], style=at) for at in range(20)],
        x_name="epoch",
    ),
}


@pytest.mark.parametrize("chart", CHARTS.values(), ids=CHARTS)
def test_everything_is_within_the_drawing(chart):
    root = ET.fromstring(draw(chart))
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    tails = []
    for text in root.iter("text"):
        kind, size = text.attrib["class"], float(text.attrib["font-size"])
        wide = text_width(text.text, size) * (1.15 if "tail" in kind else 1)
        x = float(text.attrib["x"]) - wide * {"y": 1, "x": 0.5}.get(kind.split()[-1], 0)
        assert 0 <= x <= x + wide <= width, text.text
        assert 0 < float(text.attrib["y"]) <= height
        tails += [float(text.attrib["y"])] if "tail" in kind else []
    assert len(tails) == len(chart.lines)
    assert all(other - one >= 12 for one, other in pairwise(sorted(tails)))
    for path in root.iter("path"):
        for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path.attrib["d"]):
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= height


def test_lines_are_told_apart_without_colours():
    root = ET.fromstring(draw(CHARTS["two lines that end together"]))
    dashes = [
        path.attrib.get("stroke-dasharray") for path in root.iter("path") if "line" in path.attrib["class"].split()
    ]
    assert len(dashes) == len(set(dashes)) == 2
    assert [text.text for text in root.iter("text") if "tail" in text.attrib["class"]] == ["train 100 %", "test 100 %"]


def test_a_note_says_that_an_axis_is_logarithmic():
    assert CHARTS["logarithmic, with a band"].notes == "logarithmic"
    assert CHARTS["one point"].notes == ""

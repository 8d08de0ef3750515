"""The pictures of README: drawn from the models' values, the same as the committed one, whole by itself."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from tests.support.contrast import TEXT, contrast, schemes
from tools.pictures.__main__ import HERE, METHODS, MICRO_BATCHES, main, petra_svg
from tools.pictures.drawing import WIDTH
from tools.pictures.kept_activations import simulated_training
from tools.pictures.svg_markup import text_width

SVG = "{http://www.w3.org/2000/svg}"
BOLD = 1.15


@pytest.fixture(scope="module")
def drawn():
    return petra_svg()


@pytest.fixture(scope="module")
def picture(drawn):
    return ET.fromstring(drawn)


@pytest.fixture(scope="module")
def trainings():
    return {method: simulated_training(method, MICRO_BATCHES) for method in METHODS}


def kept_at_most(training, stage):
    """How many micro-batches' activations a stage keeps at once."""
    mine = [each for each in training.kept if each.stage == stage]
    return max((sum(other.start <= each.start < other.end for other in mine) for each in mine), default=0)


def test_the_committed_picture_is_what_the_tool_draws(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["pictures", "--output", str(tmp_path)])
    main()
    hint = "run python -m tools.pictures"
    assert (tmp_path / "memory_by_depth.png").stat().st_size > 0  # its bits are the drawing library's
    assert (tmp_path / "petra.svg").read_text() == (HERE / "petra.svg").read_text(), hint


def test_nothing_is_fetched_and_nothing_runs(drawn, picture):
    kinds = {element.tag.removeprefix(SVG) for element in picture.iter()}
    assert kinds <= {"svg", "style", "title", "rect", "text", "line", "path"}
    assert {name for element in picture.iter() for name in element.attrib}.isdisjoint({"href", "src", "style"})
    assert "//" not in drawn.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"url\(|@import|javascript:", drawn)


def test_texts_and_shapes_are_inside(picture):
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    assert width == WIDTH
    for shape in picture.iter(f"{SVG}rect"):
        x, y, wide, high = (float(shape.get(name, 0)) for name in ("x", "y", "width", "height"))
        assert min(x, y, wide, high) >= 0
        assert x + wide <= width
        assert y + high <= height
    for text in picture.iter(f"{SVG}text"):
        kinds = set(text.get("class", "").split())
        wide = text_width(text.text, float(text.get("font-size"))) * (BOLD if kinds & {"title", "most"} else 1)
        before = 1 if kinds & {"row", "most"} else 0.5 if kinds & {"block", "note"} else 0
        x = float(text.get("x")) - before * wide
        assert 0 <= x <= x + wide <= width, text.text


def test_both_schemes_are_readable(picture):
    css = picture.find(f"{SVG}style").text
    for colours in schemes(css).values():
        for ground in ("ground", "strip"):
            assert contrast(colours["text"], colours[ground]) >= TEXT
            assert contrast(colours["soft"], colours[ground]) >= TEXT
        for kind in ("forward", "backward", "kept"):
            assert contrast("#000000", colours[kind]) >= TEXT


def test_both_methods_run_the_same_orders_between_two_updates(trainings):
    for stage in (1, 2):
        orders = [
            [str(event.action) for event in each.events if event.stage == stage and event.verb != "update"][:6]
            for each in trainings.values()
        ]
        assert orders[0] == orders[1]


def test_backpropagation_keeps_graphs_and_petra_only_the_images(trainings):
    graphs, petra = trainings["1f1b-flush"], trainings["petra"]
    assert [kept_at_most(graphs, stage) for stage in (1, 2)] == [2, 1]
    assert [kept_at_most(petra, stage) for stage in (1, 2)] == [2, 0]
    images = 64 * 8 * 8  # one byte a pixel
    assert {each.bytes for each in petra.kept} == {images}
    assert petra.most_kept == 2 * images
    assert graphs.most_kept == 2 * max(each.bytes for each in graphs.kept)


WEIGHT = 8
"""Bytes: that of the targets travels with the gradients."""


def test_messages_arrive_after_they_are_sent(trainings):
    for training in trainings.values():
        assert all(message.sent.end <= message.received.start for message in training.messages)
    size = {
        method: {message.sent.verb: message.bytes for message in training.messages}
        for method, training in trainings.items()
    }
    streams = size["petra"]["forward"]
    assert size["petra"] == {"forward": streams, "backward": 2 * streams + WEIGHT}, (
        "outputs travel with their gradients"
    )
    assert size["1f1b-flush"] == {"forward": streams, "backward": streams + WEIGHT}

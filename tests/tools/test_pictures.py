"""The picture at the top of README is what the plans say, and loads nothing."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from tests.support import ROOT
from tools.pictures.petra import HEIGHT, PICTURE, WIDTH, panels, picture

SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_is_the_one_that_the_plans_give():
    """After a change that is meant: `python -m tools.pictures.petra`, then look at it."""
    assert picture() == PICTURE.read_text()


def test_it_loads_nothing_and_runs_nothing():
    root = ET.parse(PICTURE).getroot()
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        *("svg", "title", "style", "defs", "marker", "path", "rect", "text", "line", "polygon")
    }
    assert not re.findall(r"(?:href|src|@import|@font-face)", PICTURE.read_text())
    assert re.findall(r"url\((.*?)\)", PICTURE.read_text()) == ["#head"]
    assert "README.md" in [path.name for path in ROOT.glob("*.md") if "tools/pictures/petra.svg" in path.read_text()]


def test_everything_lies_within_it():
    for element in ET.parse(PICTURE).getroot().iter():
        x, y = (float(element.get(key, 0)) for key in ("x", "y"))
        assert 0 <= x <= x + float(element.get("width", 0)) <= WIDTH, element.attrib
        assert 0 <= y <= y + float(element.get("height", 0)) <= HEIGHT, element.attrib


def test_it_shows_what_is_kept():
    gpipe, petra = panels()
    (most, steps), (least, _) = gpipe.kept(1), petra.kept(1)
    assert most > 1000 * least
    assert max(now for _, now in steps) == most, "as many micro-batches are in flight as the memory model says"
    assert petra.kept(2) == (0.0, [(moment, 0.0) for moment, _ in petra.kept(2)[1]])

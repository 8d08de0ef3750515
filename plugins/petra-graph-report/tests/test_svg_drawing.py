"""Drawings for pages: their own identifiers, the page's colours, no text as anything but text."""

from __future__ import annotations

import re

from petra_graph_report.svg_drawing import draw_svg, fill_boxes, inks

from tests.support.html_page import Page


def of(text: str, label: str = "a drawing"):
    def draw(figure):
        axis = figure.add_axes((0, 0, 1, 1))
        axis.text(0.5, 0.5, text, color=inks()["soft"])
        fill_boxes(axis, [(0, 0, 0.2, 0.2), (0.4, 0, 0.2, 0.2)], inks()["forward"])

    return draw_svg(draw, 200, 100, label)


def test_colours_are_the_pages():
    made = of("text")
    assert {"fill: var(--soft)", "fill: var(--forward)"} <= set(re.findall(r"fill: var\([\w-]+\)", made))
    assert not set(inks().values()) & set(re.findall(r"#[0-9a-f]{6}", made))


def test_texts_are_texts():
    """No formula is set, no tag is read, and a letter that no font has gives no warning."""
    for text in ("$x^2$", "</svg><script>", "日本語", "#1c2024"):
        assert text in Page(of(text)).texts


def test_its_label_is_escaped_and_its_size_in_pixels():
    made = of("x", 'a "label" <b>')
    assert made.startswith('<svg role="img" aria-label="a &#34;label&#34; &lt;b&gt;"')
    assert 'width="200" height="100"' in made
    assert "xmlns" not in made
    assert "<metadata" not in made


def test_two_drawings_share_no_identifier_and_the_same_is_drawn_again():
    ids = [set(re.findall(r' id="([^"]+)"', of("x", label))) for label in ("one", "other")]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert of("x") == of("x")


def test_a_users_settings_of_matplotlib_change_nothing():
    import matplotlib as mpl

    before = of("x")
    with mpl.rc_context({"axes.linewidth": 9, "xtick.major.size": 20, "svg.fonttype": "path"}):
        assert of("x") == before

"""SVG as markup: `tag` escapes every text and attribute that is not markup already.

Decision: drawings stay Python, and `tag` is five lines over markupsafe. A drawing is arithmetic with a few elements in
between, which a template would hide; a drawing library would be a dependency for what these lines do.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from itertools import accumulate

from markupsafe import Markup, escape

from petra_graph.units import one_line

_NARROW, _WIDE = frozenset("fijlrtI .,:;'|!()[]{}-/`"), frozenset("mwMW@%…")
_LETTER_WIDTHS = {"narrow": 0.4, "usual": 0.64, "capital": 0.77, "wide": 1.0, "full": 1.05}
"""Letters' widths over the font's size, in the widest of the page's fonts (DejaVu Sans)."""


def tag(name: str, /, *content: str, **attributes: str | float) -> Markup:
    """Return an element. `class_` and `stroke_width` become class and stroke-width."""
    pairs = [f'{key.rstrip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items()]
    inside = "".join(map(escape, content))
    return Markup(f"<{' '.join([name, *pairs])}>{inside}</{name}>")  # noqa: S704  the one place that makes markup


class Drawing(Markup):
    """An svg element, and its size in pixels."""

    width: float
    height: float


def svg(content: Iterable[Markup], width: float, height: float, **attributes: str | float) -> Drawing:
    """Return a drawing at its natural size."""
    box = f"0 0 {_value(width)} {_value(height)}"
    drawing = Drawing(tag("svg", *content, width=width, height=height, viewBox=box, **attributes))
    drawing.width, drawing.height = width, height
    return drawing


def in_a_row(*drawings: Drawing, gap: float = 0) -> Drawing:
    """Return drawings next to each other."""
    places = list(accumulate((drawing.width + gap for drawing in drawings), initial=0.0))
    parts = [_moved(drawing, x, 0) for drawing, x in zip(drawings, places, strict=False)]
    return svg(parts, places[-1] - gap, max(drawing.height for drawing in drawings))


def in_a_column(*drawings: Drawing, gap: float = 0) -> Drawing:
    """Return drawings below each other."""
    places = list(accumulate((drawing.height + gap for drawing in drawings), initial=0.0))
    parts = [_moved(drawing, 0, y) for drawing, y in zip(drawings, places, strict=False)]
    return svg(parts, max(drawing.width for drawing in drawings), places[-1] - gap)


def _moved(drawing: Drawing, x: float, y: float) -> Markup:
    return tag("g", drawing, transform=f"translate({x:g} {y:g})")


def words(text: str, x: float, y: float, **attributes: str | float) -> Markup:
    """Return a line of text with its baseline at y."""
    return tag("text", one_line(text), x=x, y=y, **attributes)


def title(text: str) -> Markup:
    """Return the text that is shown where a pointer rests."""
    return tag("title", text)


def text_width(text: str, size: float) -> float:
    """Estimate how wide a text is at a font's size."""
    return size * sum(_LETTER_WIDTHS[_letter_kind(letter)] for letter in text)


def _letter_kind(letter: str) -> str:
    if unicodedata.east_asian_width(letter) in "WF":
        return "full"
    if letter in _NARROW:
        return "narrow"
    if letter in _WIDE:
        return "wide"
    return "capital" if letter.isupper() else "usual"


def fitted(text: str, width: float, size: float) -> str:
    """Return as much of a text as fits; an ellipsis replaces the rest."""
    text = one_line(text)
    if text_width(text, size) <= width:
        return text
    while text and text_width(f"{text}…", size) > width:
        text = text[:-1]
    return f"{text}…" if text else ""


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return escape(value)
    return f"{value:.2f}".rstrip("0").rstrip(".")

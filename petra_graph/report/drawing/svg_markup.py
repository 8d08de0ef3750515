"""SVG as markup: `tag` escapes every text and attribute that is not markup already.

Decision: drawings stay Python, and `tag` is five lines over markupsafe. A drawing is arithmetic with a few elements in
between, which a template would hide; a drawing library would be a dependency for what these lines do.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator

from markupsafe import Markup, escape

from petra_graph.units import Units, one_line

AXIS = 22
"""Height of a drawing's upper edge, where the values of its axis stand."""
_NARROW, _WIDE = frozenset("fijlrtI .,:;'|!()[]{}-/`"), frozenset("mwMW@%…")
_LETTER_WIDTHS = {"narrow": 0.4, "usual": 0.64, "capital": 0.77, "wide": 1.0, "full": 1.05}
"""Letters' widths over the font's size, in the widest of the page's fonts (DejaVu Sans)."""
ROW_NAME_MARGINS = 12
"""Pixels to the left and to the right of a row's name."""
_EDGE = 10
"""A value nearer to the left edge begins there; others are centred."""
_ROUNDING = 1e-9


def tag(name: str, /, *content: str, **attributes: str | float) -> Markup:
    """Return an element. `class_` and `stroke_width` become class and stroke-width."""
    pairs = [f'{key.rstrip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items()]
    inside = "".join(map(escape, content))
    return Markup(f"<{' '.join([name, *pairs])}>{inside}</{name}>")  # noqa: S704  the one place that makes markup


def svg(content: Iterable[Markup], width: float, height: float, **attributes: str | float) -> Markup:
    """Return a drawing at its natural size."""
    box = f"0 0 {_value(width)} {_value(height)}"
    return tag("svg", *content, width=width, height=height, viewBox=box, **attributes)


def words(text: str, x: float, y: float, **attributes: str | float) -> Markup:
    """Return a line of text with its baseline at y."""
    return tag("text", one_line(text), x=x, y=y, **attributes)


def row_name(text: str, width: float, y: float, size: float) -> Markup:
    """Return the name of a row, as much of it as fits into the width on the row's left."""
    return words(fitted(text, width - ROW_NAME_MARGINS, size), width - 8, y, class_="row", font_size=size)


def line(x: float, top: float, bottom: float, kind: str) -> Markup:
    """Return a vertical line."""
    return tag("line", x1=x, x2=x, y1=top, y2=bottom, class_=kind)


def axis(values: Iterable[float], x_of: Callable[[float], float], bottom: float, units: Units) -> Iterator[Markup]:
    """Draw grid lines down to `bottom` at some values, and write the values above them."""
    for value in values:
        x = x_of(value)
        yield line(x, AXIS - 4, bottom, "grid")
        kind = "axis first" if x < _EDGE else "axis"
        yield words(units.text(value) if value else "0", x, AXIS - 8, class_=kind)


def axis_values(start: float, end: float, units: Units, steps: int) -> list[float]:
    """Return round values between two others, about as many as `steps`."""
    _, unit = units.fitting(end - start)
    least = (end - start) / unit / steps
    power = 10.0 ** math.floor(math.log10(least))
    step = unit * next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - _ROUNDING))
    first, last = math.ceil(start / step - _ROUNDING), math.floor(end / step * (1 + _ROUNDING))
    return [place * step for place in range(first, last + 1)]


def title(text: str) -> Markup:
    """Return the text that a pointer's rest shows."""
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
    """Return as much of a text as fits; an ellipsis stands for the rest."""
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

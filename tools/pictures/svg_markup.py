"""SVG as markup: `tag` escapes every text and attribute that is not markup already."""

from __future__ import annotations

from markupsafe import Markup, escape

_NARROW, _WIDE = frozenset("fijlrtI .,:;'|!()[]{}-/`"), frozenset("mwMW@%…")
_LETTER_WIDTHS = {"narrow": 0.4, "usual": 0.64, "capital": 0.77, "wide": 1.0}
"""Letters' widths over the font's size, in the widest of the page's fonts (DejaVu Sans)."""


def tag(name: str, /, *content: str, **attributes: str | float) -> Markup:
    """Return an element. `class_` and `stroke_width` become class and stroke-width."""
    pairs = [f'{key.rstrip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items()]
    inside = "".join(map(escape, content))
    return Markup(f"<{' '.join([name, *pairs])}>{inside}</{name}>")


def words(text: str, x: float, y: float, **attributes: str | float) -> Markup:
    """Return a line of text with its baseline at y."""
    return tag("text", text, x=x, y=y, **attributes)


def text_width(text: str, size: float) -> float:
    """Estimate how wide a text is at a font's size."""
    return size * sum(_LETTER_WIDTHS[_letter_kind(letter)] for letter in text)


def _letter_kind(letter: str) -> str:
    if letter in _NARROW:
        return "narrow"
    if letter in _WIDE:
        return "wide"
    return "capital" if letter.isupper() else "usual"


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return escape(value)
    return f"{value:.2f}".rstrip("0").rstrip(".")

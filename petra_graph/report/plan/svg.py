"""Markup, escaped: what is text goes through `escape`, attributes through `tag`."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from html import escape

from petra_graph.report.plan.units import one_line

_LETTER = 0.58
"""A letter's mean width over the font's size, in the page's font; wide scripts take two."""


def tag(name: str, content: str = "", /, **attributes: str | float) -> str:
    """Return an element. `content` is markup; `class_` and `stroke_width` become class and stroke-width."""
    words = [f'{key.rstrip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items()]
    head = " ".join([name, *words])
    return f"<{head}>{content}</{name}>"


def svg(content: Iterable[str], width: float, height: float, **attributes: str | float) -> str:
    """Return a drawing at its natural size."""
    box = f"0 0 {_value(width)} {_value(height)}"
    return tag("svg", "".join(content), width=width, height=height, viewBox=box, **attributes)


def words(text: str, x: float, y: float, **attributes: str | float) -> str:
    """Return a line of text with its baseline at y."""
    return tag("text", escape(one_line(text)), x=x, y=y, **attributes)


def title(text: str) -> str:
    """Return what a pointer's rest shows."""
    return tag("title", escape(text))


def text_width(text: str, size: float) -> float:
    """Estimate how wide a text is at a font's size."""
    return size * _LETTER * sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def fitted(text: str, width: float, size: float) -> str:
    """Return as much of a text as fits, what is left out as one character."""
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

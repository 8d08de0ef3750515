"""Contrast of colours as WCAG 2.1 defines it, and the colours that a style sheet gives to both colour schemes."""

from __future__ import annotations

import re

TEXT, GRAPHICS = 4.5, 3.0
"""The least contrast of level AA: success criteria 1.4.3 and 1.4.11."""


def contrast(one: str, other: str) -> float:
    """The ratio of two colours, written #rrggbb or #rgb."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def schemes(css: str) -> dict[str, dict[str, str]]:
    """The custom properties that are colours, by scheme; the dark scheme has those of the light one that it keeps."""
    dark = "".join(re.findall(r"@media \(prefers-color-scheme: dark\) \{(.*?\})\s*\}", css, re.DOTALL))
    assert dark, "the style sheet has no dark scheme"
    light = _colours(css.replace(dark, ""))
    return {"light": light, "dark": light | _colours(dark)}


def _colours(css: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z-]+):\s*(#[0-9a-fA-F]+)", css))


def _luminance(colour: str) -> float:
    digits = colour.removeprefix("#")
    pairs = re.findall("..", digits) if len(digits) == 6 else [2 * digit for digit in digits]
    red, green, blue = (_linear(int(pair, 16) / 255) for pair in pairs)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

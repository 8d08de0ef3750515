"""Round values along a chart's axis, and how values are written: with as few digits as tell them apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from petra_graph.units import COUNTS, PLAIN, Units

Unit = Literal["number", "share"]
"""What values are; a share of 1 is written as a percentage."""
_STEPS = 5
_MOST_DIGITS = 8
_SMALL, _THOUSANDS = 1e-3, 1e5
"""Smaller numbers are written with an exponent, larger ones in thousands or millions."""
_EXACT, _ROUNDING = 1e-9, 1e-6


def axis_values(start: float, end: float, units: Units, steps: int) -> list[float]:
    """Return round values between two others, about as many as `steps`."""
    _, unit = units.fitting(end - start)
    least = (end - start) / unit / steps
    power = 10.0 ** math.floor(math.log10(least))
    step = unit * next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - _EXACT))
    first, last = math.ceil(start / step - _EXACT), math.floor(end / step * (1 + _EXACT))
    return [place * step for place in range(first, last + 1)]


def linear_ticks(values: Sequence[float], *, zero: bool = False, most: float = math.inf) -> list[float]:
    """Return round values around others, the first and the last beyond all of them; from zero where that is near.

    Args:
        values: at least one.
        zero: whether to begin at zero.
        most: the largest value that is possible.
    """
    low, high = min(values), max(values)
    if zero or 0 < low < (high - low):
        low = min(0.0, low)
    if high - low <= _EXACT * max(abs(high), abs(low), _EXACT):
        margin = abs(high) / 2 or 1.0
        low, high = low - margin if low else 0.0, min(high + margin, max(high, most))
    ticks = axis_values(low, high, PLAIN, _STEPS)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else high - low
    first, last = math.floor(low / step + _ROUNDING), math.ceil(high / step - _ROUNDING)
    return [step * place for place in range(first, last + 1)]


def decades(values: Sequence[float]) -> list[float]:
    """Return powers of ten around positive values; 1, 2 and 5 times them where they are few."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    every = max(1, math.ceil((high - low) / _STEPS))
    powers = [10.0**power for power in range(low, high + every, every)]
    fine = [factor * 10.0**power for power in range(low, high + 1) for factor in (1, 2, 5)]
    first = max(tick for tick in fine if tick <= min(values) * (1 + _EXACT))
    ticks = [tick for tick in fine if first <= tick < max(values) * (1 - _EXACT)] or [first]
    ticks.append(min(tick for tick in fine if tick > ticks[-1] * (1 + _EXACT)))
    return ticks if len(ticks) <= _STEPS + 3 else powers


def written(value: float, unit: Unit, digits: int | None = None) -> str:
    """Write a value with this number of digits; by default a share has four, as 98.89 %, and a number three."""
    if unit == "share":
        return f"{_plain(100 * value, digits or 4)} %"
    return _plain(value, digits or 3)


def _plain(value: float, digits: int) -> str:
    if abs(value) >= _THOUSANDS:
        return COUNTS.text(value)
    if 0 < abs(value) < _SMALL:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def tick_texts(ticks: Sequence[float], unit: Unit) -> list[str]:
    """Write ticks with as few digits as tell them apart."""
    for digits in range(2, _MOST_DIGITS):
        texts = [written(tick, unit, digits) for tick in ticks]
        if len(set(texts)) == len(ticks) and all(
            _reads(text, tick, unit) for text, tick in zip(texts, ticks, strict=True)
        ):
            return texts
    return [written(tick, unit, _MOST_DIGITS) for tick in ticks]


def _reads(text: str, tick: float, unit: Unit) -> bool:
    """Whether a tick's text is its value, unless it is written in thousands or millions."""
    number = text.removesuffix(" %").replace(",", "")
    try:
        return math.isclose(float(number) / (100 if unit == "share" else 1), tick, rel_tol=1e-6, abs_tol=1e-12)
    except ValueError:
        return True

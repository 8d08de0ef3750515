"""Numbers, spans of time, counts and lists as people read them: every text of the package uses these functions.

Memory has binary prefixes, every other quantity SI prefixes. Three digits are enough to compare two values; the JSON has the
exact numbers. The numbers of a table's column share one unit, so that their digits can be compared by eye: `Units.column`
chooses it.

Decision: functions of our own instead of a library of units: the texts have few forms, and a regular expression
reads the one form of sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from itertools import pairwise
from typing import Self

from attrs import frozen

from petra_graph.errors import shown

NOTHING = "-"

_THREE_DIGITS = 100
_NEXT_UNIT = 10
"""A column's largest number has two digits at least, so that its small numbers still show."""


@frozen
class ColumnUnit:
    """How the numbers of a column are written: all in one unit, with as many decimals."""

    name: str
    size: float
    decimals: int

    def digits(self, value: float) -> str:
        """Write a value without its unit; a value above zero never reads as 0."""
        if value == 0:
            return NOTHING
        scaled, least = value / self.size, 10.0**-self.decimals
        return f"<{least:.{self.decimals}f}" if 0 < scaled < least else f"{scaled:,.{self.decimals}f}"


@frozen
class Units:
    """The units of a quantity: their names, and how many base units each is, the smallest first."""

    names: tuple[str, ...]
    sizes: tuple[float, ...]

    @classmethod
    def powers(cls, base: float, names: Iterable[str]) -> Self:
        """Return units of which each is `base` times the one before."""
        names = tuple(names)
        return cls(names, tuple(base**power for power in range(len(names))))

    def fitting(self, value: float) -> tuple[str, float]:
        """Return the name and the size of the largest unit that a value reaches, or else of the smallest unit."""
        place = sum(size <= value * (1 + 1e-9) for size in self.sizes[1:])
        return self.names[place], self.sizes[place]

    def text(self, value: float) -> str:
        """Write a value with three digits and its unit."""
        name, size = self.fitting(abs(value))
        scaled = value / size
        digits = f"{scaled:,.0f}" if abs(scaled) >= _THREE_DIGITS else f"{scaled:.3g}"
        return f"{digits} {name}".rstrip()

    def column(self, values: Iterable[float]) -> ColumnUnit:
        """Return how to write these values below one another: base units are whole, unless rates of a few of them are compared."""
        values = list(values)
        largest = max(map(abs, values), default=0)
        name, size = self.fitting(largest / _NEXT_UNIT)
        hundreds = largest / size >= _THREE_DIGITS
        whole = size == self.sizes[0] == 1 and (hundreds or all(float(value).is_integer() for value in values))
        return ColumnUnit(name, size, 0 if whole else 1 if hundreds else 2)


BINARY = Units.powers(1024.0, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))
DECIMAL = Units.powers(1000.0, ("B", "kB", "MB", "GB", "TB", "PB"))
SECONDS = Units(("ns", "µs", "ms", "s"), (1e-9, 1e-6, 1e-3, 1.0))
FLOPS = Units.powers(1000.0, (f"{prefix}FLOP" for prefix in ("", "k", "M", "G", "T", "P", "E")))
COUNT_WORDS = Units.powers(1000.0, ("", "thousand", "million", "billion"))
COUNTS = Units.powers(1000.0, ("", "k", "M", "G", "T"))
PLAIN = Units.powers(1.0, ("",))

memory, seconds, flops, count = BINARY.text, SECONDS.text, FLOPS.text, COUNTS.text
"""Bytes as 1.25 GiB, seconds as 12.5 ms, operations as 4.09 GFLOP, a number of things as 25.6 M."""


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]i?B|B)?")
_SIZES = {
    name.replace("k", "K"): size
    for units in (BINARY, DECIMAL)
    for name, size in zip(units.names, units.sizes, strict=True)
}


def byte_count(text: str) -> int:
    """Return the bytes of a size: "40GiB" (2^30), "40GB" (10^9), "1500MB", "123".

    Raises:
        ValueError: the text is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'a size is a number and a unit, as in "40GiB" or "40GB" (got {shown(text)})')
    return int(float(match[1]) * _SIZES[(match[2] or "B").replace("k", "K")])


def size_text(value: float) -> str:
    """Write bytes as a spec may have them, up to GiB, with two decimals."""
    for name, size in zip(BINARY.names[3:0:-1], BINARY.sizes[3:0:-1], strict=True):
        if value >= size:
            return f"{value / size:.2f} {name}"
    return f"{value:.0f} bytes"


def paper_memory(value: float) -> str:
    """Write bytes as the paper does, in GB of 10**9 bytes, without the unit: 20.33."""
    return f"{value / 1e9:,.2f}"


def rate(value: float) -> str:
    """Write samples per second."""
    return f"{PLAIN.text(value)} samples/s"


def percent(share: float, decimals: int = 1) -> str:
    """Write a share as 54.3 %."""
    return f"{100 * share:.{decimals}f} %"


_CLOCK = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_COUNTED_IN_MINUTES = 120


def duration(value: float) -> str:
    """Write seconds as people count a training: 12.5 s, 3 min 20 s, 5 h 40 min, 2 d 7 h."""
    if value < _COUNTED_IN_MINUTES:
        return seconds(value)
    (large, size), (small, part) = next(pair for pair in pairwise(_CLOCK) if value >= pair[0][1])
    whole, rest = divmod(round(value / part), size // part)
    return f"{whole:,} {large} {rest} {small}"


def age(value: float) -> str:
    """Write the seconds that have passed, in the largest unit that they reach: 3 d."""
    gone = max(0, int(value))
    unit, size = next((unit for unit in _CLOCK if gone >= unit[1]), _CLOCK[-1])
    return f"{gone // size} {unit}"


def clock(value: float) -> str:
    """Write the time that something still takes as 0:03:20."""
    return str(timedelta(seconds=round(value)))


def number(value: float) -> str:
    """Write a plain number; a whole number is written without decimals."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def factor(value: float) -> str:
    """Write a factor as 1.17 x."""
    return f"{value:.2f} x"


def noun(many: float, thing: str, ending: str = "s") -> str:
    """Return the word for this number of things, without the number."""
    return thing if many == 1 else thing + ending


def plural(many: float, thing: str) -> str:
    """Write how many things there are: 1 stage, 2 stages."""
    return f"{number(many)} {noun(many, thing)}"


def listed(names: Iterable[str], most: int = 4) -> str:
    """Write the first names, with the number of the others: a, b and 3 more."""
    names = list(names)
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def left_out(many: int, of_what: str = "") -> str:
    """Return the text in place of rows that are not shown: … 3 more, … 3 more lines."""
    return f"… {many} more {of_what}".rstrip()


def bounded(text: str, width: int) -> str:
    """Return a text of at most `width` characters, cut at any character; an ellipsis replaces the rest."""
    return text if len(text) <= width else text[: width - 1] + "…"


def one_line(text: str) -> str:
    """Return a text without line breaks and control characters, which would break a drawing."""
    return "".join(letter if letter.isprintable() else " " for letter in text)

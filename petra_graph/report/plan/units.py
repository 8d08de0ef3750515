"""Numbers with units, for people: binary prefixes for memory, SI prefixes for every other quantity.

Three digits are enough to compare two values; the JSON has the exact numbers. The numbers of a table's column share one
unit, so that their digits can be compared by eye: `Units.column` chooses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Self

from attrs import frozen

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
    """The units of a quantity: their names, and how many base units each stands for, the smallest first."""

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
        """Return how to write these values below one another."""
        largest = max(map(abs, values), default=0)
        name, size = self.fitting(largest / _NEXT_UNIT)
        exact = size == self.sizes[0] == 1
        return ColumnUnit(name, size, 0 if exact else 1 if largest / size >= _THREE_DIGITS else 2)


BINARY = Units.powers(1024.0, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))
DECIMAL = Units.powers(1000.0, ("B", "kB", "MB", "GB", "TB", "PB"))
SECONDS = Units(("ns", "µs", "ms", "s"), (1e-9, 1e-6, 1e-3, 1.0))
FLOPS = Units.powers(1000.0, (f"{prefix}FLOP" for prefix in ("", "k", "M", "G", "T", "P", "E")))
COUNT_WORDS = Units.powers(1000.0, ("", "thousand", "million", "billion"))
COUNTS = Units.powers(1000.0, ("", "k", "M", "G", "T"))
PLAIN = Units.powers(1.0, ("",))

memory, seconds, flops, count = BINARY.text, SECONDS.text, FLOPS.text, COUNTS.text
"""Bytes as 1.25 GiB, seconds as 12.5 ms, operations as 4.09 GFLOP, a number of things as 25.6 M."""


def paper_memory(value: float) -> str:
    """Write bytes as the paper does, in GB of 10**9 bytes, without the unit: 20.33."""
    return f"{value / 1e9:,.2f}"


def rate(value: float) -> str:
    """Write samples in a second."""
    return f"{PLAIN.text(value)} samples/s"


def percent(share: float) -> str:
    """Write a share as 54.3 %."""
    return f"{100 * share:.1f} %"


def duration(value: float) -> str:
    """Write seconds as people count a training: 12.5 s, 3 min 20 s, 5 h 40 min, 2 d 7 h."""
    if value < _COUNTED_IN_MINUTES:
        return seconds(value)
    for (large, size), (small, part) in pairwise(_CLOCK):
        if value >= size or large == _CLOCK[-2][0]:
            whole, rest = divmod(round(value / part), round(size / part))
            return f"{whole:,} {large} {rest} {small}"
    raise AssertionError("the last pair takes what is left")


_CLOCK = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_COUNTED_IN_MINUTES = 120


def number(value: float) -> str:
    """Write a plain number, without decimals where it has none."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def factor(value: float) -> str:
    """Write a factor as 1.17 x."""
    return f"{value:.2f} x"


def plural(many: float, thing: str) -> str:
    """Write how many things there are: 1 stage, 2 stages."""
    return f"{number(many)} {thing}{'s' * (many != 1)}"


def bounded(text: str, width: int) -> str:
    """Return a text of at most `width` characters, cut at any character; an ellipsis stands for the rest."""
    return text if len(text) <= width else text[: width - 1] + "…"


def one_line(text: str) -> str:
    """Return a text without line breaks and control characters, which would break a drawing."""
    return "".join(letter if letter.isprintable() else " " for letter in text)

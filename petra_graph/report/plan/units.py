"""Numbers with units, for people: binary prefixes for memory, SI for everything else.

Three digits tell enough to compare by; the exact numbers are in the JSON. A column of numbers shares one unit, so that
its digits can be compared by eye: `column_of` finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

NOTHING = "-"


@frozen
class Scale:
    """A unit, and how many base units it stands for."""

    unit: str
    size: float

    def text(self, value: float) -> str:
        """Write a value in this unit, to three digits."""
        scaled = value / self.size
        digits = f"{scaled:,.0f}" if abs(scaled) >= _THREE_DIGITS else f"{scaled:.3g}"
        return f"{digits} {self.unit}".rstrip()


@frozen
class Column:
    """How the numbers of a column are written: all in one unit, to as many decimals."""

    unit: str
    size: float
    decimals: int

    def digits(self, value: float) -> str:
        """Write a value without its unit; what is not nothing never reads as 0."""
        if value == 0:
            return NOTHING
        scaled, least = value / self.size, 10.0**-self.decimals
        return f"<{least:.{self.decimals}f}" if 0 < scaled < least else f"{scaled:,.{self.decimals}f}"


_THREE_DIGITS = 100
_NEXT_UNIT = 10
"""A column's largest number has two digits at least, so that its small ones still show."""

BINARY = tuple(Scale(unit, 1024.0**power) for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB")))
DECIMAL = tuple(Scale(unit, 1000.0**power) for power, unit in enumerate(("B", "kB", "MB", "GB", "TB", "PB")))
SECONDS = tuple(Scale(unit, size) for unit, size in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)))
FLOPS = tuple(Scale(f"{prefix}FLOP", 1000.0**power) for power, prefix in enumerate(("", "k", "M", "G", "T", "P", "E")))
COUNT_WORDS = tuple(Scale(word, 1000.0**power) for power, word in enumerate(("", "thousand", "million", "billion")))
COUNTS = tuple(Scale(prefix, 1000.0**power) for power, prefix in enumerate(("", "k", "M", "G", "T")))


def scale_of(scales: Sequence[Scale], values: Iterable[float]) -> Scale:
    """Return the largest unit in which the largest value is at least 1."""
    largest = max((abs(value) for value in values), default=0)
    fitting = [scale for scale in scales if scale.size <= largest * (1 + 1e-9)]
    return fitting[-1] if fitting else scales[0]


def column_of(scales: Sequence[Scale], values: Iterable[float]) -> Column:
    """Return how to write these values below one another."""
    largest = max((abs(value) for value in values), default=0)
    scale = scale_of(scales, [largest / _NEXT_UNIT])
    exact = scale is scales[0] and scale.size == 1
    decimals = 0 if exact else 1 if largest / scale.size >= _THREE_DIGITS else 2
    return Column(scale.unit, scale.size, decimals)


def memory(value: float) -> str:
    """Write bytes as 1.25 GiB."""
    return scale_of(BINARY, [value]).text(value)


def paper_memory(value: float) -> str:
    """Write bytes as the paper does, 20.33 GB: powers of ten, two decimals."""
    return f"{value / 1e9:,.2f} GB"


def seconds(value: float) -> str:
    """Write seconds as 12.5 ms."""
    return scale_of(SECONDS, [value]).text(value)


def flops(value: float) -> str:
    """Write operations as 4.09 GFLOP."""
    return scale_of(FLOPS, [value]).text(value)


def count(value: float) -> str:
    """Write a number of things as 25.6 M."""
    return scale_of(COUNTS, [value]).text(value)


def rate(value: float) -> str:
    """Write samples in a second."""
    return f"{COUNTS[0].text(value)} samples/s"


def percent(share: float) -> str:
    """Write a share as 54.3 %."""
    return f"{100 * share:.1f} %"


def number(value: float) -> str:
    """Write a plain number, without decimals where it has none."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def times(factor: float) -> str:
    """Write a factor as 1.17 x."""
    return f"{factor:.2f} x"


def plural(many: int, thing: str) -> str:
    """Write how many things there are: 1 stage, 2 stages."""
    return f"{many:,} {thing}{'s' * (many != 1)}"


def bounded(text: str, width: int) -> str:
    """Return a text of at most `width` characters; what is left out shows as one."""
    return text if len(text) <= width else text[: width - 1] + "…"


def one_line(text: str) -> str:
    """Return a text without line breaks and control characters, which would break any drawing."""
    return "".join(letter if letter.isprintable() else " " for letter in text)

"""Numbers, spans of time, counts and lists as people read them: every text of the package uses these functions.

Memory has binary prefixes, every other quantity SI prefixes. Three digits are enough to compare two values; the JSON has the exact numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from attrs import frozen

from petra_graph.errors import shown

NOTHING = "-"
_THREE_DIGITS = 100


@frozen
class Units:
    """The units of a quantity: their names, and how many base units each is, the smallest first."""

    names: tuple[str, ...]
    sizes: tuple[float, ...]

    def text(self, value: float) -> str:
        """Write a value with three digits and the largest unit that it reaches, or else the smallest."""
        place = sum(size <= abs(value) * (1 + 1e-9) for size in self.sizes[1:])
        scaled = value / self.sizes[place]
        digits = f"{scaled:,.0f}" if abs(scaled) >= _THREE_DIGITS else f"{scaled:.3g}"
        return f"{digits} {self.names[place]}".rstrip()


def _powers(base: float, *names: str) -> Units:
    return Units(names, tuple(base**power for power in range(len(names))))


BINARY = _powers(1024.0, "B", "KiB", "MiB", "GiB", "TiB", "PiB")
DECIMAL = _powers(1000.0, "B", "kB", "MB", "GB", "TB", "PB")
SECONDS = Units(("ns", "µs", "ms", "s"), (1e-9, 1e-6, 1e-3, 1.0))
FLOPS = _powers(1000.0, "FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP")
COUNTS = _powers(1000.0, "", "k", "M", "G", "T")
PLAIN = _powers(1.0, "")

memory, seconds, flops, count = BINARY.text, SECONDS.text, FLOPS.text, COUNTS.text
"""Bytes as 1.25 GiB, seconds as 12.5 ms, operations as 4.09 GFLOP, a number of things as 25.6 M."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]i?B|B)?")
_SIZES = {
    name.replace("k", "K"): size
    for units in (BINARY, DECIMAL)
    for name, size in zip(units.names, units.sizes, strict=True)
}


def byte_count(text: str) -> int:
    """Return the bytes of a size: "40GiB" (2^30), "40GB" (10^9), "1500MB", "123". Raises ValueError: the text is not a size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'must be a number and a unit, as in "40GiB" or "40GB" (got {shown(text)})')
    return int(float(match[1]) * _SIZES[(match[2] or "B").replace("k", "K")])


def size_text(value: float) -> str:
    """Write bytes as a spec may have them, up to GiB, with two decimals."""
    for name, size in zip(BINARY.names[3:0:-1], BINARY.sizes[3:0:-1], strict=True):
        if value >= size:
            return f"{value / size:.2f} {name}"
    return f"{value:.0f} bytes"


def rate(value: float) -> str:
    """Write samples per second."""
    return f"{PLAIN.text(value)} samples/s"


def percent(share: float, decimals: int = 1) -> str:
    """Write a share as 54.3 %."""
    return f"{100 * share:.{decimals}f} %"


_CLOCK = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_COUNTED_IN_MINUTES = 120


def duration(value: float) -> str:
    """Write seconds as people count a training, or an age: 12.5 s, 3 min 20 s, 5 h 40 min, 2 d 7 h."""
    if value < _COUNTED_IN_MINUTES:
        return seconds(value)
    (large, size), (small, part) = next(pair for pair in pairwise(_CLOCK) if value >= pair[0][1])
    whole, rest = divmod(round(value / part), size // part)
    return f"{whole:,} {large} {rest} {small}"


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


def bounded(text: str, width: int) -> str:
    """Return a text of at most `width` characters, cut at any character; an ellipsis replaces the rest."""
    return text if len(text) <= width else text[: width - 1] + "…"


def one_line(text: str) -> str:
    """Return a text without line breaks and control characters, which would break a drawing."""
    return "".join(letter if letter.isprintable() else " " for letter in text)

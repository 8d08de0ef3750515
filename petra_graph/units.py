"""Numbers, spans of time, counts and lists as people read them: three digits; binary prefixes for memory, else SI prefixes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import pairwise

from petra_graph.errors import shown


def _in(units: Iterable[str], base: float, least: float = 1.0) -> Callable[[float], str]:
    """Return what writes values with three digits and the largest unit that they reach, or else the smallest, which is `least` base units."""
    names = list(units)
    sizes = [least * base**power for power in range(len(names))]

    def text(value: float) -> str:
        place = sum(size <= abs(value) * (1 + 1e-9) for size in sizes[1:])
        scaled = value / sizes[place]
        digits = f"{scaled:,.0f}" if abs(scaled) >= 100 else f"{scaled:.3g}"  # noqa: PLR2004
        return f"{digits} {names[place]}".rstrip()

    return text


memory = _in(["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024.0)  # write bytes, as 1.25 GiB
seconds = _in(["ns", "µs", "ms", "s"], 1000.0, 1e-9)
count = _in(["", *"kMGT"], 1000.0)
plain = _in([""], 1.0)
factor = "{:.2f} x".format  # write a factor, as 1.17 x


def byte_count(text: str) -> int:
    """Return the bytes of a size: "40GiB" (2^30), "40GB" (10^9), "1500MB", "123". Raises ValueError: the text is not a size."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGT]i?B|B|)", text.strip())
    if match is None:
        raise ValueError(f'must be a number and a unit, as in "40GiB" or "40GB" (got {shown(text)})')
    unit = match[2].upper().rstrip("B")  # "", "K" or "KI"
    return int(float(match[1]) * (1024 if unit.endswith("I") else 1000) ** "_KMGT".index(unit[:1] or "_"))


def rate(value: float) -> str:
    """Write samples per second."""
    return f"{plain(value)} samples/s"


def percent(share: float, decimals: int = 1) -> str:
    """Write a share as 54.3 %."""
    return f"{100 * share:.{decimals}f} %"


def duration(value: float) -> str:
    """Write seconds as people count a training, or an age: 12.5 s, 3 min 20 s, 5 h 40 min, 2 d 7 h."""
    if value < 120:  # noqa: PLR2004
        return seconds(value)
    clock = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    (large, size), (small, part) = next(pair for pair in pairwise(clock) if value >= pair[0][1])
    whole, rest = divmod(round(value / part), size // part)
    return f"{whole:,} {large} {rest} {small}"


def number(value: float) -> str:
    """Write a plain number; a whole number is written without decimals."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


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

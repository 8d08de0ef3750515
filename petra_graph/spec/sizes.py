"""Sizes in bytes as text.

Decision: two functions instead of a library of units: the texts have one form, which one regular expression reads.
"""

from __future__ import annotations

import re

from petra_graph.errors import shown

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]i?B|B)?")
_UNITS = {"B": 1} | {
    f"{letter}{infix}B": base**power
    for power, letter in enumerate("KMGT", start=1)
    for infix, base in (("", 1000), ("i", 1024))
}


def byte_count(text: str) -> int:
    """Return the bytes of a size: "40GiB" (2^30), "40GB" (10^9), "1500MB", "123".

    Raises:
        ValueError: the text is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'a size is a number and a unit, as in "40GiB" or "40GB" (got {shown(text)})')
    return int(float(match[1]) * _UNITS[(match[2] or "B").replace("k", "K")])


def size_text(count: float) -> str:
    """Return a number of bytes as text, in units of 1024."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count:.0f} bytes"

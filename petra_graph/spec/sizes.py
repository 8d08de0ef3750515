"""Sizes in bytes, as people write them."""

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
    """Read a size: "40GiB" (2^30), "40GB" (10^9), "1500MB", "123".

    Raises:
        ValueError: it is no size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f'a size is a number and a unit, as in "40GiB" or "40GB" (got {shown(text)})')
    return int(float(found[1]) * _UNITS[(found[2] or "B").replace("k", "K")])

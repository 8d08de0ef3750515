"""What to choose of several plans of one network on the same devices: nothing that another one beats, and of the rest the fastest.

A plan beats another one if it is at least as fast, as little late and as small on its fullest device, and better in one of these. If plans are
about as fast as the fastest, one whose gradients are less late is recommended: staleness costs accuracy, and how much no plan can say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_ABOUT = 0.95
"""The share of the greatest throughput from which plans are about as fast; predictions are not surer than that."""
_ALIKE = 1.01
"""The ratio up to which two figures are the same."""

Row = Mapping[str, Any]


def recommend(rows: Sequence[dict[str, Any]]) -> int | None:
    """Mark the rows that no other one beats as `unbeaten`, and return the number of the recommended one; None if no row fits.

    Args:
        rows: with `samples_per_second`, `staleness` in updates, `memory_peak` in bytes, and `fits`, which is None where the memory of
            devices is not known.
    """
    usable = [row for row in rows if row["samples_per_second"] and row["fits"] is not False]
    for row in rows:
        row["unbeaten"] = row in usable and not any(_beats(other, row) for other in usable)
    if not usable:
        return None
    fastest = max(row["samples_per_second"] for row in usable)
    candidates = [row for row in usable if row["samples_per_second"] >= _ABOUT * fastest]
    least = min(row["staleness"] for row in candidates)
    best = max(
        (row for row in candidates if row["staleness"] == least),
        key=lambda row: (row["samples_per_second"], -row["memory_peak"]),
    )
    return rows.index(best)


def _beats(one: Row, other: Row) -> bool:
    ratios = (
        one["samples_per_second"] / other["samples_per_second"],
        (1 + other["staleness"]) / (1 + one["staleness"]),
        other["memory_peak"] / one["memory_peak"],
    )
    return bool(min(ratios) >= 1 / _ALIKE and max(ratios) > _ALIKE)

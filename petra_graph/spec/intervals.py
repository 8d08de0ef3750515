"""How often something is done, as text: "1 epoch", "500 updates", "10 min"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from attrs import frozen

from petra_graph.errors import shown
from petra_graph.spec.bounds import Bound, Fault, Schema

Unit = Literal["epochs", "updates", "seconds"]
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?) ?(epochs?|updates?|s|min|h)")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_FORM = (
    'must be a whole number of epochs or updates, or a time in s, min or h, as in "1 epoch", "500 updates", "10 min"'
)


@frozen
class Interval:
    """A number of a unit."""

    count: float
    """Above 0; a whole number, except of seconds."""
    unit: Unit


def interval(text: str) -> Interval:
    """Read an interval.

    Raises:
        ValueError: the text is not an interval.
    """
    match = _INTERVAL.fullmatch(text.strip())
    found = None if match is None else _read(float(match[1]), match[2])
    if found is None or found.count <= 0:
        raise ValueError(f"{_FORM} (got {shown(text)})")
    return found


def _read(number: float, unit: str) -> Interval | None:
    if unit in _SECONDS:
        return Interval(number * _SECONDS[unit], "seconds")
    if number != int(number):
        return None
    return Interval(number, "epochs" if unit.startswith("epoch") else "updates")


@frozen
class IsInterval(Bound):
    """Text that is an interval."""

    @property
    def brief(self) -> str:
        return 'as "1 epoch", "500 updates", "10 min"'

    def faults(self, value: Any) -> Iterator[Fault]:
        if isinstance(value, str):
            try:
                interval(value)
            except ValueError:
                yield Fault(rule=_FORM, value=value)

    def keywords(self, schema: Schema) -> Schema:
        return {"pattern": f"^{_INTERVAL.pattern}$"} if schema.get("type") == "string" else {}

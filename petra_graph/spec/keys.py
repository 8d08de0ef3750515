"""What is said of a key besides its type, in tables of the specification and in the options of plugins alike: its meaning, and its bounds.

    lr: Annotated[float, "base learning rate", AtLeast(0)] = 0.1
    betas: Annotated[tuple[float, ...], "shares", Length(2), Each(AtLeast(0), LessThan(1))] = (0.9, 0.999)

A bound is called with the value, and raises ValueError("must be at least 1"). Those of this module are shown in tables of keys, too. They apply to
values of their own kind, numbers or lists and texts, and let all others pass: the type of the key says which kinds there may be. So
`int | None` needs no more than `AtLeast(1)`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any, get_args, get_origin

from attrs import field, frozen

from petra_graph.units import byte_count, plural

NODES = 20_000
"""The most copies of a node, and the most stages: the planner's work and the page of a plan grow with them."""
LONGEST_NAME = 200
"""Bytes: file systems have 255 for a name, and a run's directory adds its time and a random part."""


def annotated(kind: Any) -> tuple[Any, str, list[Bound]]:
    """Return the type, the meaning and the bounds of a key, of its annotation."""
    kind, *said = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    texts, bounds = (
        (one for one in said if isinstance(one, str)),
        [one for one in said if callable(one) or isinstance(one, Each)],
    )
    return kind, " ".join(texts), bounds


@frozen
class Limit:
    """A bound of numbers: one of `AtLeast`, `GreaterThan`, `AtMost` and `LessThan`."""

    sign: str
    words: str
    holds: Callable[[Any, Any], bool] = field(repr=False)
    limit: float

    def __call__(self, value: Any) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not self.holds(value, self.limit):
            raise ValueError(f"must be {self.words} {self.limit}")

    def __str__(self) -> str:
        return f"{self.sign} {self.limit}"


AtLeast = partial(Limit, ">=", "at least", operator.ge)
GreaterThan = partial(Limit, ">", "greater than", operator.gt)
AtMost = partial(Limit, "<=", "at most", operator.le)
LessThan = partial(Limit, "<", "less than", operator.lt)


@frozen
class Length:
    """The bound of the length of a list or a text: this one, or at least that."""

    exactly: int | None = None
    at_least: int = field(default=0, kw_only=True)

    def __call__(self, value: Any) -> None:
        if not isinstance(value, str | list | tuple):
            return
        thing = "character" if isinstance(value, str) else "item"
        if self.exactly not in {None, len(value)}:
            raise ValueError(f"must have {plural(self.exactly or 0, thing)}")
        if len(value) < self.at_least:
            few = "must not be empty" if self.at_least == 1 else f"must have at least {plural(self.at_least, thing)}"
            raise ValueError(few)

    def __str__(self) -> str:
        least = "not empty" if self.at_least == 1 else f"length >= {self.at_least}"
        return least if self.exactly is None else f"length {self.exactly}"


class Each:
    """The bounds of each item of a list; what reads the list calls them, and names the item."""

    def __init__(self, *bounds: Bound) -> None:
        self.bounds = bounds

    def __str__(self) -> str:
        return f"each {brief(self.bounds)}"


Bound = Callable[[Any], object] | Each


def brief(bounds: Iterable[Bound]) -> str:
    """Return bounds as a table of keys has them: ">= 1, < 10"."""
    return ", ".join(str(one) for one in bounds if isinstance(one, Limit | Length | Each))


def is_file_name(name: Any) -> None:
    """Refuse a name that cannot be a part of a path, or of the keys of weights, which "/" separates."""
    if not isinstance(name, str):
        return
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        raise ValueError('must consist of letters, digits, "_", "-" and ".", and not begin with "."')
    if len(name.encode()) > LONGEST_NAME:
        raise ValueError(f"must have at most {LONGEST_NAME} bytes")


def is_size(size: Any) -> None:
    """Refuse a text that is no number of bytes."""
    if isinstance(size, str) and not byte_count(size):
        raise ValueError("must be at least a byte")

"""The keys of a table: each with its default, its meaning and its bounds, of the specification and of a plugin's options alike.

    lr: float = key(0.1, "base learning rate", AtLeast(0))
    betas: tuple[float, ...] = key((0.9, 0.999), "shares", Length(2), Each(AtLeast(0), LessThan(1)))

A bound knows its own words, so that messages and pages can say it. It applies to values of its own kind, numbers or lists and texts, and lets
all others pass: the type of the key says which kinds there may be. So `int | None` needs no more than `AtLeast(1)`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

import attrs
from attrs import field, frozen

from petra_graph.errors import Path
from petra_graph.units import byte_count, plural

IS_PATH, IS_CODE, BOUND = "is_path", "is_code", "bound"
"""In the metadata of a key: whether its value names a file or a folder, relative to that of the file that gives it, or code as
"module:attribute", and its `Bound`."""
NODES = 20_000
"""Nodes of a network: the planner's work and the page of a plan grow with them."""
LONGEST_NAME = 200
"""Bytes: file systems have 255 for a name, and a run's directory adds its time and a random part."""


def key(default: Any, text: str, *bounds: Bound) -> Any:
    """Return an optional key of a table: its default, its meaning with its unit, and its bounds."""
    return field(default=default, metadata={"help": text, BOUND: together(*bounds) if bounds else None})


def required(text: str, *bounds: Bound) -> Any:
    return key(attrs.NOTHING, text, *bounds)


def table(cls: type, text: str = "") -> Any:
    """Return a key whose value is a table in which nothing is required: a class, whose docstring says what it is, or `dict`."""
    return field(factory=cls, metadata={"help": text or (cls.__doc__ or "").partition("\n")[0]})


def keys_with(mark: str, cls: type) -> tuple[str, ...]:
    """Return the keys of a table that are marked by `IS_PATH` or `IS_CODE`."""
    return tuple(one.name for one in attrs.fields(cls) if one.metadata.get(mark))


@frozen
class Bound:
    """A bound of a value.

    Attributes:
        brief: the bound in a table of options, as in ">= 1".
        faults: yields how a value breaks the bound, as the end of a sentence: "must be at least 1"; and the path to the item of it that does.
    """

    brief: str
    faults: Callable[[Any], Iterator[tuple[str, Path]]]


def rule(brief: str, broken: Callable[[Any], str]) -> Bound:
    """Return the bound of a function that says how a value breaks it, as in "must be odd", or "" where it does not."""
    return Bound(brief, lambda value: ((text, ()) for text in [broken(value)] if text))


def _compared(sign: str, words: str, holds: Callable[[Any, Any], bool]) -> Callable[[float], Bound]:
    def bound(limit: float) -> Bound:
        def broken(value: Any) -> str:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return f"must be {words} {limit}" if is_number and not holds(value, limit) else ""

        return rule(f"{sign} {limit}", broken)

    return bound


AtLeast = _compared(">=", "at least", operator.ge)
GreaterThan = _compared(">", "greater than", operator.gt)
AtMost = _compared("<=", "at most", operator.le)
LessThan = _compared("<", "less than", operator.lt)


def Length(exactly: int | None = None, *, at_least: int = 0, at_most: int | None = None) -> Bound:  # noqa: N802  it is used like a class
    """Return the bound of the length of a list or a text."""
    least, most = (at_least, at_most) if exactly is None else (exactly, exactly)

    def broken(value: Any) -> str:
        if not isinstance(value, str | list | tuple):
            return ""
        thing = "character" if isinstance(value, str) else "item"
        if most is not None and len(value) > most:
            return f"must have {'' if least == most else 'at most '}{plural(most, thing)}"
        if len(value) < least:
            words = "" if least == most else "at least "
            return "must not be empty" if least == 1 != most else f"must have {words}{plural(least, thing)}"
        return ""

    if least == most:
        return rule(f"length {least}", broken)
    parts = {0: "", 1: "not empty"}.get(least, f"length >= {least}"), "" if most is None else f"length <= {most}"
    return rule(", ".join(filter(None, parts)), broken)


def Each(*bounds: Bound) -> Bound:  # noqa: N802  as above
    """Return the bound of a list each of whose items has these bounds."""
    item = together(*bounds)

    def faults(value: Any) -> Iterator[tuple[str, Path]]:
        for index, one in enumerate(value if isinstance(value, list | tuple) else ()):
            yield from ((text, (index, *path)) for text, path in item.faults(one))

    return Bound(f"each {item.brief}", faults)


def together(*bounds: Bound) -> Bound:
    """Return several bounds of one value as one."""
    brief = ", ".join(bound.brief for bound in bounds if bound.brief)
    return Bound(brief, lambda value: (fault for bound in bounds for fault in bound.faults(value)))


def _in_file_name(name: Any) -> str:
    if not isinstance(name, str):
        return ""
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        return 'must consist of letters, digits, "_", "-" and ".", and not begin with "."'
    return f"must have at most {LONGEST_NAME} bytes" if len(name.encode()) > LONGEST_NAME else ""


def _is_size(size: Any) -> str:
    try:
        return "must be at least a byte" if isinstance(size, str) and not byte_count(size) else ""
    except ValueError:
        return 'must be a number and a unit, as in "40GiB" or "40GB"'


MOST_NODES = AtMost(NODES)
FILE_NAME = rule("a part of a file's name", _in_file_name)
"""A name that can be a part of a path, or of the keys of weights, which "/" separates."""
SIZE = rule("", _is_size)
"""A text with a number of bytes."""

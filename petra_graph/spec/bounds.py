"""The bounds of keys: attrs validators that know their own words.

    lr: float = option("base learning rate", validator=AtLeast(0))
    momentum: float = option("share that is kept", default=0.9, validator=[AtLeast(0), LessThan(1)])
    betas: tuple[float, ...] = option("shares", validator=[Length(2), Each(AtLeast(0), LessThan(1))])

A bound applies to the values of its own kind, numbers or lists and texts, and lets all others pass: the type of the key
says which kinds there may be. So `int | None` needs no more than `AtLeast(1)`. attrs' own validators carry their bounds
in private classes, so that no message and no page could say them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import attrs
from attrs import evolve, frozen

from petra_graph.errors import shown
from petra_graph.units import plural

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], object]
"""What attrs calls with the instance, the field and the value; it raises an exception where the value is wrong."""


@frozen(kw_only=True)
class Fault:
    """A value that breaks a bound: the end of a sentence, as in "must be at least 1"."""

    rule: str
    value: Any
    path: tuple[int, ...] = ()
    """The items that lead to the value."""
    allowed: tuple[Any, ...] = ()
    """All values that would do, where they are few."""


class OutOfBounds(ValueError):
    """A value breaks its key's bounds."""

    def __init__(self, name: str, faults: tuple[Fault, ...]) -> None:
        items = ["".join(f"[{index}]" for index in fault.path) for fault in faults]
        rules = (f"{name}{item} {one.rule} (got {shown(one.value)})" for item, one in zip(items, faults, strict=True))
        super().__init__("; ".join(rules))
        self.faults = faults


@frozen
class Bound:
    """A bound of a value, as an attrs validator.

    Attributes:
        brief: the bound in a table of options, as in ">= 1".
        faults: yields how a value breaks the bound.
        others: validators that are not bounds, and run after it.
    """

    brief: str
    faults: Callable[[Any], Iterator[Fault]]
    others: tuple[Validator, ...] = ()

    def __call__(self, instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        """Check a value, as attrs calls validators.

        Raises:
            OutOfBounds: the value breaks the bound.
        """
        if faults := tuple(self.faults(value)):
            raise OutOfBounds(attribute.name, faults)
        for other in self.others:
            other(instance, attribute, value)


def _compared(sign: str, words: str, holds: Callable[[Any, Any], bool]) -> Callable[[float], Bound]:
    def bound(limit: float) -> Bound:
        def faults(value: Any) -> Iterator[Fault]:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and not holds(value, limit):
                yield Fault(rule=f"must be {words} {limit}", value=value)

        return Bound(f"{sign} {limit}", faults)

    return bound


AtLeast = _compared(">=", "at least", operator.ge)
GreaterThan = _compared(">", "greater than", operator.gt)
AtMost = _compared("<=", "at most", operator.le)
LessThan = _compared("<", "less than", operator.lt)


def Length(exactly: int | None = None, *, at_least: int = 0, at_most: int | None = None) -> Bound:  # noqa: N802  it is used like a class
    """Return the bound of the length of a list or a text."""
    least, most = (at_least, at_most) if exactly is None else (exactly, exactly)

    def faults(value: Any) -> Iterator[Fault]:
        if not isinstance(value, str | list | tuple):
            return
        things = "character" if isinstance(value, str) else "item"
        if len(value) < least:
            words = f"have {'' if least == most else 'at least '}{plural(least, things)}"
            yield Fault(rule=f"must {words if least > 1 else 'not be empty'}", value=value)
        elif most is not None and len(value) > most:
            yield Fault(rule=f"must have {'' if least == most else 'at most '}{plural(most, things)}", value=value)

    words = {0: "", 1: "not empty"}.get(least, f"length >= {least}")
    both = ", ".join(filter(None, (words, "" if most is None else f"length <= {most}")))
    return Bound(f"length {least}" if least == most else both, faults)


def OneOf(*values: float | str) -> Bound:  # noqa: N802  as above
    """Return the bound of a value that is one of a few; where a key has no other use for its type, `Literal` says the same."""

    def faults(value: Any) -> Iterator[Fault]:
        if value is not None and value not in values:
            yield Fault(rule=f"must be one of {', '.join(map(shown, values))}", value=value, allowed=values)

    return Bound(" | ".join(map(shown, values)), faults)


def Each(*bounds: Bound) -> Bound:  # noqa: N802  as above
    """Return the bound of a list each of whose items has these bounds."""

    def faults(value: Any) -> Iterator[Fault]:
        for index, item in enumerate(value if isinstance(value, list | tuple) else ()):
            for bound in bounds:
                yield from (evolve(fault, path=(index, *fault.path)) for fault in bound.faults(item))

    return Bound(f"each {_brief(bounds)}", faults)


def together(*parts: Validator) -> Bound:
    """Return several bounds of one value as one; other validators may stand among them."""
    bounds = tuple(part for part in parts if isinstance(part, Bound))

    def faults(value: Any) -> Iterator[Fault]:
        for bound in bounds:
            yield from bound.faults(value)

    return Bound(_brief(bounds), faults, tuple(part for part in parts if not isinstance(part, Bound)))


def _brief(bounds: tuple[Bound, ...]) -> str:
    return ", ".join(bound.brief for bound in bounds if bound.brief)

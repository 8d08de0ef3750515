"""The bounds of keys: attrs validators that know their own words.

    lr: float = option("base learning rate", validator=AtLeast(0))
    momentum: float = option("share that is kept", default=0.9, validator=[AtLeast(0), LessThan(1)])
    betas: tuple[float, ...] = option("shares", validator=[Length(2), Each(AtLeast(0), LessThan(1))])

A bound applies to the values of its own kind, numbers or lists and texts, and lets all others pass: the type of the key
says which kinds there may be. So `int | None` needs no more than `AtLeast(1)`. A plugin may add a bound of its own.

Decision: validators of our own. attrs' carry their bounds in private classes, and their words would have to be parsed.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import attrs
from attrs import evolve, field, frozen

from petra_graph.errors import shown
from petra_graph.units import plural

_HOLDS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
Validator = Callable[[Any, "attrs.Attribute[Any]", Any], object]
"""What attrs calls with the instance, the field and the value; it raises an exception where the value is wrong."""


@frozen(kw_only=True)
class Fault:
    """A value that breaks a bound."""

    rule: str
    """The end of a sentence: "must be at least 1"."""
    value: Any
    path: tuple[int, ...] = ()
    """The items that lead to the value."""
    allowed: tuple[Any, ...] = ()
    """All values that would do, where they are few."""


class OutOfBounds(ValueError):
    """A value breaks its key's bounds."""

    def __init__(self, name: str, faults: tuple[Fault, ...]) -> None:
        items = ("".join(f"[{index}]" for index in fault.path) for fault in faults)
        rules = (
            f"{name}{item} {fault.rule} (got {shown(fault.value)})" for item, fault in zip(items, faults, strict=True)
        )
        super().__init__("; ".join(rules))
        self.faults = faults


@frozen
class Bound(ABC):
    """A bound of a value, as an attrs validator."""

    def __call__(self, instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        """Check a value, as attrs calls validators.

        Raises:
            OutOfBounds: the value breaks the bound.
        """
        faults = tuple(self.faults(value))
        if faults:
            raise OutOfBounds(attribute.name, faults)

    @property
    @abstractmethod
    def brief(self) -> str:
        """The bound in a table of options: ">= 1"."""

    @abstractmethod
    def faults(self, value: Any) -> Iterator[Fault]:
        """Yield how a value breaks the bound."""


@frozen
class _Comparison(Bound):
    """A number compared with a limit."""

    limit: float

    _words: ClassVar[str]
    _sign: ClassVar[str]

    @property
    def brief(self) -> str:
        return f"{self._sign} {self.limit}"

    def faults(self, value: Any) -> Iterator[Fault]:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not _HOLDS[self._sign](value, self.limit):
            yield Fault(rule=f"must be {self._words} {self.limit}", value=value)


@frozen
class AtLeast(_Comparison):
    """A number of at least `limit`."""

    _words, _sign = "at least", ">="


@frozen
class GreaterThan(_Comparison):
    """A number greater than `limit`."""

    _words, _sign = "greater than", ">"


@frozen
class AtMost(_Comparison):
    """A number of at most `limit`."""

    _words, _sign = "at most", "<="


@frozen
class LessThan(_Comparison):
    """A number less than `limit`."""

    _words, _sign = "less than", "<"


@frozen
class Length(Bound):
    """The length of a list or a text: exactly `exactly`, or `at_least` .. `at_most`."""

    exactly: int | None = None
    at_least: int = field(kw_only=True, default=0)
    at_most: int | None = field(kw_only=True, default=None)

    @property
    def brief(self) -> str:
        least, most = self._range
        if least == most:
            return f"length {least}"
        words = {0: "", 1: "not empty"}.get(least, f"length >= {least}")
        return ", ".join(filter(None, (words, "" if most is None else f"length <= {most}")))

    def faults(self, value: Any) -> Iterator[Fault]:
        least, most = self._range
        if not isinstance(value, str | list | tuple):
            return
        things = "character" if isinstance(value, str) else "item"
        if len(value) < least:
            words = f"have {'' if least == most else 'at least '}{plural(least, things)}"
            yield Fault(rule=f"must {words if least > 1 else 'not be empty'}", value=value)
        elif most is not None and len(value) > most:
            words = f"{'' if least == most else 'at most '}{plural(most, things)}"
            yield Fault(rule=f"must have {words}", value=value)

    @property
    def _range(self) -> tuple[int, int | None]:
        return (self.at_least, self.at_most) if self.exactly is None else (self.exactly, self.exactly)


@frozen(init=False)
class OneOf(Bound):
    """One of a few numbers or texts; where a key has no other use for its type, `Literal` says the same."""

    values: tuple[Any, ...]

    def __init__(self, *values: float | str) -> None:
        self.__attrs_init__(values)

    @property
    def brief(self) -> str:
        return " | ".join(shown(value) for value in self.values)

    def faults(self, value: Any) -> Iterator[Fault]:
        if value is not None and value not in self.values:
            listed = ", ".join(shown(item) for item in self.values)
            yield Fault(rule=f"must be one of {listed}", value=value, allowed=self.values)


@frozen(init=False)
class Each(Bound):
    """Bounds of each item of a list."""

    bounds: tuple[Bound, ...]

    def __init__(self, *bounds: Bound) -> None:
        self.__attrs_init__(bounds)

    @property
    def brief(self) -> str:
        return f"each {_brief(self.bounds)}"

    def faults(self, value: Any) -> Iterator[Fault]:
        for index, item in enumerate(value if isinstance(value, list | tuple) else ()):
            for bound in self.bounds:
                yield from (evolve(fault, path=(index, *fault.path)) for fault in bound.faults(item))


@frozen(init=False)
class All(Bound):
    """Several bounds of one value; other validators may stand among them, and run after them."""

    parts: tuple[Validator, ...]

    def __init__(self, *parts: Validator) -> None:
        self.__attrs_init__(parts)

    def __call__(self, instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        """Check a value.

        Raises:
            OutOfBounds: the value breaks a bound.
        """
        super().__call__(instance, attribute, value)
        for part in self.parts:
            if not isinstance(part, Bound):
                part(instance, attribute, value)

    @property
    def _bounds(self) -> tuple[Bound, ...]:
        return tuple(part for part in self.parts if isinstance(part, Bound))

    @property
    def brief(self) -> str:
        return _brief(self._bounds)

    def faults(self, value: Any) -> Iterator[Fault]:
        for bound in self._bounds:
            yield from bound.faults(value)


def _brief(bounds: tuple[Bound, ...]) -> str:
    return ", ".join(bound.brief for bound in bounds if bound.brief)

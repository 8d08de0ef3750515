"""A bound: an attrs validator that knows its own words, and the JSON schema that says the same.

A bound is only a base here: `bounds` has those that keys use. A plugin may add its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import attrs
from attrs import frozen

from petra_graph.errors import shown

Schema = dict[str, Any]
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

    def narrow(self, schema: Schema) -> Schema:
        """Return the JSON schema of a type with the bound added wherever the bound applies."""
        if "anyOf" in schema:
            return schema | {"anyOf": [self.narrow(member) for member in schema["anyOf"]]}
        return schema | self.keywords(schema)

    @abstractmethod
    def keywords(self, schema: Schema) -> Schema:
        """Return what the bound adds to the schema of a type without alternatives."""

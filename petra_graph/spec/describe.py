"""Types in the words of TOML's authors, not of Python."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from petra_graph.errors import shown

SINGULAR = {int: "an integer", float: "a number", str: "a string", bool: "true or false", Any: "anything"}
PLURAL = {int: "integers", float: "numbers", str: "strings", bool: "booleans", Any: "values"}


class UnknownTypeError(TypeError):
    """A type that no TOML value can have."""


def describe(kind: Any) -> str:
    """Return a value of this type in words, with the article: "an integer", "a list of strings".

    Raises:
        UnknownTypeError: TOML values cannot be read as this type.
    """
    if kind in SINGULAR:
        return SINGULAR[kind]
    if is_union(kind):
        return ", or ".join(describe(member) for member in members(kind))
    if is_literal(kind):
        listed = ", ".join(shown(value) for value in get_args(kind))
        return listed if len(get_args(kind)) == 1 else f"one of {listed}"
    if is_list(kind):
        return f"a list of {_items(kind)}"
    if is_table(kind):
        return "a table"
    raise UnknownTypeError(f"{kind!r} cannot be read from TOML")


def is_union(kind: Any) -> bool:
    """Return whether the type is a union."""
    return get_origin(kind) in (Union, types.UnionType)


def is_literal(kind: Any) -> bool:
    """Return whether the type is a Literal."""
    return get_origin(kind) is Literal


def is_list(kind: Any) -> bool:
    """Return whether the type is read from a TOML array."""
    return get_origin(kind) in (tuple, list, Sequence)


def is_mapping(kind: Any) -> bool:
    """Return whether the type is a table of free keys."""
    return get_origin(kind) in (dict, Mapping)


def is_table(kind: Any) -> bool:
    """Return whether the type is read from a TOML table."""
    return is_mapping(kind) or (isinstance(kind, type) and attrs.has(kind))


def members(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union without None, since TOML has no null."""
    return tuple(member for member in get_args(kind) if member is not type(None))


def item_types(kind: Any, length: int) -> tuple[Any, ...] | None:
    """Return the type of each of `length` items of a list; None where the list must have another length."""
    arguments = get_args(kind)
    if get_origin(kind) is not tuple:
        return (arguments[0],) * length
    if len(arguments) == 2 and arguments[1] is Ellipsis:  # noqa: PLR2004  tuple[item, ...]
        return (arguments[0],) * length
    return arguments if len(arguments) == length else None


def _items(kind: Any) -> str:
    arguments = get_args(kind)
    if get_origin(kind) is tuple and arguments[-1] is not Ellipsis:
        same = len(set(arguments)) == 1
        return f"{len(arguments)} {_plural(arguments[0])}" if same else ", ".join(map(describe, arguments))
    return _plural(arguments[0])


def _plural(kind: Any) -> str:
    if kind in PLURAL:
        return PLURAL[kind]
    if is_list(kind):
        return f"lists of {_items(kind)}"
    if is_table(kind):
        return "tables"
    return f"values, each {describe(kind)}"

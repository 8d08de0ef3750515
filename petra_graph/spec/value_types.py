"""The types of TOML values in words, and values in TOML's types."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from petra_graph.errors import shown

SINGULAR = {int: "an integer", float: "a number", str: "a string", bool: "true or false", Any: "anything"}
PLURAL = {int: "integers", float: "numbers", str: "strings", bool: "booleans", Any: "values"}


def describe(kind: Any) -> str:
    """Return a value of this type in words, with the article: "an integer", "a list of strings".

    Raises:
        TypeError: TOML values cannot be read as this type.
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
    raise TypeError(f"{kind!r} cannot be read from TOML")


def is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def is_literal(kind: Any) -> bool:
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
    """Return the types of a union without None, since TOML has no null; any other type is the only one."""
    return tuple(member for member in get_args(kind) if member is not type(None)) if is_union(kind) else (kind,)


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


def as_mapping(value: Any) -> Any:
    """Return a value in TOML's types; keys without a value and empty options are left out."""
    if attrs.has(type(value)):
        items = {attribute.name: getattr(value, attribute.name) for attribute in attrs.fields(type(value))}
        return as_mapping({key: item for key, item in items.items() if item != {}})
    if isinstance(value, Mapping):
        return {key: as_mapping(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [as_mapping(item) for item in value]
    return plain(value)


def plain(value: Any) -> Any:
    """Return a number of numpy's as Python's own; this imports no numpy."""
    is_number = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    return value.item() if is_number else value


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of nested tables with their values, both as text."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = dict(enumerate(value, start=1))
    if not isinstance(value, dict):
        yield name, shown(value)
        return
    for key, item in value.items():
        yield from flat(item, f"{name}.{key}" if name else key)

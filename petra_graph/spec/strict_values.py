"""Strict reading of TOML values: a value must have exactly its type, and every problem is reported at once.

Decision: no value is converted. "3", true and 3.0 are not integers; only an integer may be given for
a number. A silent conversion would hide a mistake of the author until later.

Decision: a field's validator runs when its value is read, not when the whole table is built, so that one pass reports
values out of range together with unknown keys.

Decision: not cattrs, which reads profiles. Its readers of numbers, texts, unions and literals would each need a hook
of ours so that nothing is converted, and a field's validator would run only when the class is built.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NoReturn, get_args, get_origin

import attrs

from petra_graph.errors import Problem
from petra_graph.spec.bounds import OutOfBounds
from petra_graph.spec.error_messages import (
    RawValue,
    mismatch,
    missing_key,
    out_of_bounds,
    refused_table,
    refused_value,
    unknown_key,
)
from petra_graph.spec.value_types import describe, is_list, is_literal, is_mapping, is_union, item_types, members


class Unreadable(Exception):
    """A value cannot be read, for the reasons in `problems`; `allowed` are the values of its literal types."""

    def __init__(self, problems: Iterable[Problem], allowed: tuple[Any, ...] = ()) -> None:
        super().__init__()
        self.problems = tuple(problems)
        self.allowed = allowed


class Mismatch(Unreadable):
    """A value itself, and not an item inside it, does not have its type."""

    def __init__(self, value: RawValue, expected: str, allowed: tuple[Any, ...] = ()) -> None:
        super().__init__([mismatch(value, expected, allowed)], allowed)


def read(value: RawValue, kind: Any) -> Any:  # noqa: C901, PLR0911  one case a form of type
    """Return a TOML value as a value of this type.

    Raises:
        Unreadable: the value, or an item inside it, does not have its type, or a validator refuses it.
    """
    raw = value.raw
    if kind is Any:
        return raw
    if is_union(kind):
        return _read_union(value, kind)
    if is_literal(kind):
        allowed = get_args(kind)
        for item in allowed:
            if type(item) is type(raw) and item == raw:
                return item
        raise Mismatch(value, describe(kind), allowed)
    if is_list(kind):
        types = item_types(kind, len(raw)) if isinstance(raw, list | tuple) else None
        if types is None:
            raise Mismatch(value, describe(kind))
        items = _read_items((value.item(index), item_type) for index, item_type in enumerate(types))
        return items if get_origin(kind) is list else tuple(items)
    if is_mapping(kind):
        if not isinstance(raw, Mapping):
            raise Mismatch(value, describe(kind))
        item_type = get_args(kind)[1]
        return dict(zip(raw, _read_items((value.item(key), item_type) for key in raw), strict=True))
    if attrs.has(kind):
        return _read_class(value, kind)
    if type(raw) not in ((int, float) if kind is float else (kind,)):
        raise Mismatch(value, describe(kind))
    if kind is float and not math.isfinite(raw):
        raise Mismatch(value, "a finite number")
    return kind(raw)


def _read_items(entries: Iterable[tuple[RawValue, Any]]) -> list[Any]:
    """Return the read values of entries (value, type)."""
    items: list[Any] = []
    problems: list[Problem] = []
    for value, kind in entries:
        try:
            items.append(read(value, kind))
        except Unreadable as error:
            problems += error.problems
    if problems:
        raise Unreadable(problems)
    return items


def _read_union(value: RawValue, kind: Any) -> Any:
    errors: list[Unreadable] = []
    for member in members(kind):
        try:
            return read(value, member)
        except Unreadable as error:
            errors.append(error)
    # A problem inside the value says more: the outer shape was right.
    inside = [error for error in errors if not isinstance(error, Mismatch)]
    if inside or len(errors) == 1:
        raise (inside or errors)[0]
    raise Mismatch(value, describe(kind), tuple(item for error in errors for item in error.allowed))


def _read_class(value: RawValue, cls: type) -> Any:
    attrs.resolve_types(cls)
    fields = {attribute.name: attribute for attribute in attrs.fields(cls) if attribute.init}
    if not isinstance(value.raw, Mapping):
        raise Mismatch(value, describe(cls))
    unknown = [key for key in value.raw if key not in fields]
    # A misspelt key was meant to be one of these, which therefore is not missing.
    misspelt = {close for key in unknown for close in get_close_matches(key, fields, n=1)}
    arguments: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, attribute in fields.items():
        if name in value.raw:
            try:
                arguments[attribute.alias or name] = _read_field(value.item(name), attribute)
            except Unreadable as error:
                problems += error.problems
        elif attribute.default is attrs.NOTHING and name not in misspelt:
            problems.append(missing_key(value, attribute))
    problems += [unknown_key(value, key, fields) for key in unknown]
    if problems:
        raise Unreadable(problems)
    try:
        return cls(**arguments)
    except Exception as error:  # a plugin's own check may raise anything
        raise Unreadable([refused_table(value, error)]) from error


def _read_field(value: RawValue, attribute: attrs.Attribute[Any]) -> Any:
    result = read(attrs.evolve(value, unit=attribute.metadata.get("unit", "")), attribute.type)
    if attribute.validator is not None:
        try:
            attribute.validator(_UNBUILT, attribute, result)
        except _NeedsInstanceError:
            pass  # The validator compares fields, and runs when the table is built.
        except OutOfBounds as error:
            raise Unreadable(out_of_bounds(value, fault) for fault in error.faults) from error
        except Exception as error:  # any function may be a validator
            raise Unreadable([refused_value(value, error)]) from error
    return result


class _NeedsInstanceError(Exception):
    pass


class _Unbuilt:
    """The table, for validators, while its fields are still being read."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _NeedsInstanceError(name)


_UNBUILT = _Unbuilt()

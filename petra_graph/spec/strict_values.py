"""Strict reading of TOML values: a value must have exactly its type, and every problem is reported at once.

Decision: no value is converted. "3", true and 3.0 are not integers; only an integer may be given for a number. A silent
conversion would hide a mistake of the author until later. A field's validator runs when its value is read, not when the
whole table is built, so that one pass reports values out of range together with unknown keys.
"""

from __future__ import annotations

import math
import types
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import reduce
from operator import getitem
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import attrs
from attrs import field, frozen

from petra_graph.errors import Path, Problem, shown, suggestion
from petra_graph.spec.keys import Bound

T = TypeVar("T")
_LONGEST_SHOWN = 60
_WORDS = {
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
    bool: ("true or false", "booleans"),
    Any: ("anything", "values"),
}


def structure_as(
    kind: type[T], value: Any, path: Path, *, names: Mapping[Path, str] | None = None
) -> tuple[T | None, tuple[Problem, ...]]:
    """Return a value read strictly as a type, or None and the problems, whose paths begin with `path`; arguments as of `Reader`."""
    reader = Reader(names=names or {})
    found = reader.read(value, kind, path)
    return (None if reader.problems else found), tuple(reader.problems)


@frozen(kw_only=True)
class Reader:
    """Reads values, and collects what is wrong with them."""

    names: Mapping[Path, str] = field(factory=dict)
    """Names in messages of tables that have better names than their paths."""
    problems: list[Problem] = field(factory=list)
    parts: dict[Path, Any] = field(factory=dict)
    """The tables that could be read, without their wrong keys."""

    def read(self, value: Any, kind: Any, path: Path) -> Any:
        """Return a value as a type; where it is not of the type, there are more problems, and the result is of no use."""
        value = plain(value)
        kind = next((member for member in members(kind) if _has_form(value, member)), kind)
        kinds = item_types(kind, len(value)) if is_list(kind) and isinstance(value, list | tuple) else ()
        if not _has_form(value, kind) or kinds is None:
            hint = _meant(value, kind, path) if isinstance(value, str) and path else ""
            self.add(path, f"must be {describe(kind)}", value, hint)
        elif attrs.has(kind):
            return self.table(value, kind, path)
        elif is_list(kind):
            items = [self.read(item, of, (*path, at)) for at, (item, of) in enumerate(zip(value, kinds, strict=True))]
            return items if get_origin(kind) is list else tuple(items)
        elif is_mapping(kind):
            return {key: self.read(item, get_args(kind)[1], (*path, key)) for key, item in value.items()}
        elif kind is float:
            if not math.isfinite(value):
                self.add(path, "must be a finite number", value)
            return float(value)
        return value

    def table(self, table: Mapping[str, Any], cls: Any, path: Path) -> Any:
        """Return a table as a class; where only keys with defaults are wrong, what is left of it is one of the `parts`."""
        attrs.resolve_types(cls)
        fields = {attribute.name: attribute for attribute in attrs.fields(cls) if attribute.init}
        unknown = [key for key in table if key not in fields]
        # A misspelt key was meant to be one of these, which therefore is not missing.
        misspelt = {close for key in unknown for close in get_close_matches(key, fields, n=1)} - table.keys()
        before, given, wrong = len(self.problems), dict[str, Any](), set(misspelt)
        for name, attribute in fields.items():
            known = len(self.problems)
            if name in table:
                given[attribute.alias or name] = self.field(table[name], attribute, (*path, name))
            elif attribute.default is attrs.NOTHING and name not in misspelt:
                self.missing(attribute, path)
            elif isinstance(attribute.default, attrs.Factory) and attrs.has(attribute.default.factory):  # type: ignore[arg-type]
                self.parts[(*path, name)] = attribute.default.factory()
            if len(self.problems) > known:
                wrong.add(name)
                given.pop(attribute.alias or name, None)
        for key in unknown:
            message, hint = f"unknown key {shown(key)} in {self.table_name(path)}", suggestion(key, fields)
            tables = [name for name, one in fields.items() if key in getattr(one.type, "__annotations__", ())]
            if tables and not path:
                hint = f"write {' or '.join(f'{name}.{key}' for name in tables)}"
            self.problems.append(Problem(message=message, hint=hint, path=(*path, key)))
        if any(fields[name].default is attrs.NOTHING or name in _SELECTORS for name in wrong):
            return None
        try:
            self.parts[path] = cls(**given)
        except Exception as error:  # noqa: BLE001  a plugin's own check may raise anything
            message = f"{self.table_name(path)}: {str(error) or type(error).__name__}"
            self.problems.append(Problem(message=message, path=path))
        return None if len(self.problems) > before else self.parts[path]

    def field(self, value: Any, attribute: attrs.Attribute[Any], path: Path) -> Any:
        """Return the value of a key, checked; its validator says nothing of a value that has not its type."""
        known = len(self.problems)
        found = self.read(value, attribute.type, path)
        if isinstance(attribute.validator, Bound) and len(self.problems) == known:
            for text, inside in attribute.validator.faults(found):
                self.add((*path, *inside), text, reduce(getitem, inside, value))
        return found

    def missing(self, attribute: attrs.Attribute[Any], table: Path) -> None:
        path, meaning = (*table, attribute.name), attribute.metadata.get("help", "")
        is_header = isinstance(attribute.type, type) and attrs.has(attribute.type)
        what = f"[{'.'.join(map(str, path))}] is missing" if is_header else f"{attribute.name} is missing"
        message = what if is_header else f"{what} in {self.table_name(table)}"
        hint = f"{attribute.name}: {meaning}" if meaning else ""
        self.problems.append(Problem(message=message, hint=hint, path=path))

    def add(self, path: Path, rule: str, value: Any, hint: str = "") -> None:
        text = shown(value)
        text = text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
        got = "" if "(got " in rule or rule == "must not be empty" else f" (got {text})"
        self.problems.append(Problem(message=f"{self.name(path)} {rule}{got}", hint=hint, path=path))

    def name(self, path: Path) -> str:
        """Return the name of a value in messages: its key and the table around it."""
        keys, items = list(path), ""
        while keys and isinstance(keys[-1], int) and tuple(keys) not in self.names:
            items = f"[{keys.pop()}]{items}"
        if not keys or tuple(keys) in self.names:
            return self.table_name(tuple(keys))
        around = f" in {self.table_name(tuple(keys[:-1]))}" if keys[:-1] else ""
        return f"{keys[-1]}{items}{around}"

    def table_name(self, path: Path) -> str:
        """Return the name of a table: `[optimizer.clip]`, or a given name of it or around it."""
        for length in range(len(path), -1, -1):
            if name := self.names.get(path[:length]):
                rest = ".".join(map(str, path[length:]))
                return f"{rest} of {name}" if rest else name
        return f"[{'.'.join(map(str, path))}]" if path else "the specification"


_SELECTORS = {"name", "block", "options"}
"""The keys by which a table names a plugin: with another value than was meant, the table would name another plugin."""


def _meant(text: str, kind: Any, path: Path) -> str:
    """Return a hint for a text in the place of another value: a word that is like it, or how it is written."""
    words = [str(word) for one in members(kind) if get_origin(one) is Literal for word in get_args(one)]
    if "did you mean" in (close := suggestion(text, words)):
        return close
    for one in members(kind):
        if attrs.has(one) and "name" in attrs.fields_dict(one):
            return f"write {path[-1]}.name = {shown(text)}"
        if is_list(one) and get_args(one)[0] is str:
            return f"write [{shown(text)}]"
    return ""


def _has_form(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, whatever is inside it."""
    if kind is Any:
        return True
    if get_origin(kind) is Literal:
        return any(type(item) is type(value) and item == value for item in get_args(kind))  # true == 1 == 1.0
    if is_list(kind):
        return isinstance(value, list | tuple)
    if is_mapping(kind) or attrs.has(kind):
        return isinstance(value, Mapping)
    return type(value) is kind or (kind is float and type(value) is int)


def describe(kind: Any, *, several: bool = False) -> str:
    """Return a value of this type in words, with the article: "an integer", "a list of strings"; or several values.

    Raises:
        TypeError: TOML values cannot be read as this type.
    """
    if kind in _WORDS:
        return _WORDS[kind][several]
    if get_origin(kind) is Literal:
        listed = ", ".join(map(shown, get_args(kind)))
        return listed if len(get_args(kind)) == 1 else f"one of {listed}"
    if len(members(kind)) > 1 or members(kind)[0] is not kind:
        return ", or ".join(describe(member, several=several) for member in members(kind))
    if is_list(kind):
        first, *others = get_args(kind)
        if len({first, *others} - {...}) > 1:
            return ", ".join(map(describe, get_args(kind)))
        count = "" if others in ([], [...]) else f"{len(others) + 1} "
        return f"{'lists' if several else 'a list'} of {count}{describe(first, several=True)}"
    if is_mapping(kind) or (isinstance(kind, type) and attrs.has(kind)):
        return "tables" if several else "a table"
    raise TypeError(f"{kind!r} cannot be read from TOML")


def members(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union without None, since TOML has no null; any other type is the only one."""
    is_union = get_origin(kind) in (Union, types.UnionType)
    return tuple(member for member in get_args(kind) if member is not type(None)) if is_union else (kind,)


def is_list(kind: Any) -> bool:
    """Return whether the type is read from a TOML array."""
    return get_origin(kind) in (tuple, list, Sequence)


def is_mapping(kind: Any) -> bool:
    """Return whether the type is a table of free keys."""
    return get_origin(kind) in (dict, Mapping)


def item_types(kind: Any, length: int) -> tuple[Any, ...] | None:
    """Return the type of each of `length` items of a list; None where the list must have another length."""
    first, *others = get_args(kind)
    if others in ([], [...]):
        return (first,) * length
    return (first, *others) if len(others) + 1 == length else None


def plain(value: Any) -> Any:
    """Return a number of numpy's as Python's own; this imports no numpy."""
    is_number = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    return value.item() if is_number else value


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


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of nested tables with their values, both as text."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = dict(enumerate(value, start=1))
    if not isinstance(value, dict):
        yield name, shown(value)
        return
    for key, item in value.items():
        yield from flat(item, f"{name}.{key}" if name else key)

"""Strict reading of TOML values: a value must have exactly its type and keep its bounds, and every problem is reported at once.

What is said of a key besides its type, in tables of the specification and in options of plugins alike, stands in its annotation; and of
the items of a list in theirs:

    lr: Annotated[float, "base learning rate", AtLeast(0)] = 0.1
    betas: Annotated[tuple[Annotated[float, AtLeast(0), LessThan(1)], ...], "shares", Length(2)] = (0.9, 0.999)

A bound is called with the value, and raises ValueError("must be at least 1"). Those of this module apply to values of their own kind, numbers or
lists and texts, and let all others pass: the type says which kinds there may be. So `int | None` needs no more than `AtLeast(1)`.

Decision: no value is converted. "3", true and 3.0 are not integers; only an integer may be given for a number. A silent
conversion would hide a mistake of the author until later. A bound is applied when its value is read, not when the
whole table is built, so that one pass reports values out of range together with unknown keys.
"""

from __future__ import annotations

import math
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import attrs
from attrs import field, frozen

from petra_graph.errors import Path, Problem, shown, suggestion
from petra_graph.units import byte_count

NODES = 20_000
"""The most copies of a node, and the most stages: the planner's work and the page of a plan grow with them."""
LONGEST_NAME = 200
"""Bytes: file systems have 255 for a name, and a run's directory adds its time and a random part."""

# --- bounds ---


@frozen
class Bound:
    """What must hold of a number, or of the length of a list or text."""

    sign: str
    """In tables of keys: ">= 1"."""
    rule: str
    """In messages, behind "must "."""
    of: Any = field(repr=False)
    holds: Callable[[Any], bool] = field(repr=False)

    def __call__(self, value: Any) -> None:
        if isinstance(value, self.of) and not isinstance(value, bool) and not self.holds(value):
            raise ValueError(f"must {self.rule}")


def AtLeast(limit: float) -> Bound:  # noqa: N802  bounds read as names of what they demand
    return Bound(f">= {limit}", f"be at least {limit}", int | float, lambda value: value >= limit)


def GreaterThan(limit: float) -> Bound:  # noqa: N802
    return Bound(f"> {limit}", f"be greater than {limit}", int | float, lambda value: value > limit)


def AtMost(limit: float) -> Bound:  # noqa: N802
    return Bound(f"<= {limit}", f"be at most {limit}", int | float, lambda value: value <= limit)


def LessThan(limit: float) -> Bound:  # noqa: N802
    return Bound(f"< {limit}", f"be less than {limit}", int | float, lambda value: value < limit)


def Length(exactly: int | None = None, *, at_least: int = 0) -> Bound:  # noqa: N802
    """The length of a list or a text: this one, or at least that."""
    sign = f"length >= {at_least}" if exactly is None else f"length {exactly}"
    sign, rule = ("not empty", "not be empty") if (exactly, at_least) == (None, 1) else (sign, f"have {sign}")
    wanted = range(at_least, sys.maxsize) if exactly is None else (exactly,)
    return Bound(sign, rule, str | list | tuple, lambda value: len(value) in wanted)


def is_file_name(name: Any) -> None:
    """Refuse a name that cannot be a part of a path, or of the keys of weights, which "/" separates."""
    if not isinstance(name, str):
        return
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        raise ValueError('must consist of letters, digits, "_", "-" and ".", and not begin with "."')
    if len(name.encode()) > LONGEST_NAME:
        raise ValueError(f"must have at most {LONGEST_NAME} bytes")


def is_size(size: str) -> None:
    """Refuse a text that is no number of bytes."""
    if not byte_count(size):
        raise ValueError("must be at least a byte")


# --- what an annotation says ---

LISTS, MAPPINGS = (tuple, list, Sequence), (dict, Mapping)
"""The origins of types that are read from TOML's arrays, and from tables of free keys."""


def annotated(kind: Any) -> tuple[Any, str, list[Callable[[Any], object]]]:
    """Return the type, the meaning and the bounds of a key, of its annotation."""
    kind, *said = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    return kind, " ".join(one for one in said if isinstance(one, str)), [one for one in said if callable(one)]


def members(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union without None, since TOML has no null; any other type is the only one."""
    is_union = get_origin(kind) in (Union, types.UnionType)
    return tuple(member for member in get_args(kind) if member is not type(None)) if is_union else (kind,)


def item_types(kind: Any, length: int) -> tuple[Any, ...]:
    """Return the type of each item of a list of any length, or else of the length that the type has."""
    first, *others = get_args(kind)
    return (first,) * length if others in ([], [...]) else (first, *others)


def has_form(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, whatever is inside it; a list has the length of one that has a type for each item."""
    kind, *_ = annotated(kind)
    if kind is Any:
        return True
    if get_origin(kind) is Literal:
        return any(type(item) is type(value) and item == value for item in get_args(kind))  # true == 1 == 1.0
    if get_origin(kind) in LISTS:
        return isinstance(value, list | tuple) and len(item_types(kind, len(value))) == len(value)
    if get_origin(kind) in MAPPINGS or attrs.has(kind):
        return isinstance(value, Mapping)
    return type(value) is (str if kind is FilePath else kind) or (kind is float and type(value) is int)


_WORDS = {
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
    FilePath: ("a string", "strings"),
    bool: ("true or false", "booleans"),
    Any: ("anything", "values"),
}


def describe(kind: Any, *, several: bool = False) -> str:
    """Return a value of this type in words, with the article: "an integer", "a list of strings"; or several values."""
    kind, *_ = annotated(kind)
    if kind in _WORDS:
        return _WORDS[kind][several]
    if get_origin(kind) is Literal:
        listed = ", ".join(map(shown, get_args(kind)))
        return listed if len(get_args(kind)) == 1 else f"one of {listed}"
    if members(kind) != (kind,):
        return ", or ".join(describe(member, several=several) for member in members(kind))
    if get_origin(kind) in LISTS:
        kinds = [annotated(one)[0] for one in item_types(kind, 1)]  # which may differ in their bounds alone
        if len(set(kinds)) > 1:
            return ", ".join(map(describe, kinds))
        count = f"{len(kinds)} " if len(kinds) > 1 else ""
        return f"{'lists' if several else 'a list'} of {count}{describe(kinds[0], several=True)}"
    return "tables" if several else "a table"


def brief(kind: Any) -> str:
    """Return the bounds of a key as a table of keys has them: ">= 1, < 10"."""
    kind, _, bounds = annotated(kind)
    items = [brief(get_args(one)[0]) for one in members(kind) if get_origin(one) in LISTS]
    own = [one.sign for one in bounds if isinstance(one, Bound)]
    return ", ".join([*own, *(f"each {one}" for one in items if one)])


def keys_with(mark: object, cls: type) -> tuple[str, ...]:
    """Return the keys of a table that are of a type alone, `Path` for names of files, or have a bound, that of names of code."""

    def has_mark(kind: Any) -> bool:
        kind, _, bounds = annotated(kind)
        inside = [annotated(one) for one in members(kind)]
        return [one for one, *_ in inside] == [mark] or any(mark in said for *_, said in ((bounds,), *inside))

    return tuple(one.name for one in attrs.fields(cls) if has_mark(one.type))


# --- reading ---

_LONGEST_SHOWN = 60
_SELECTORS = {"name", "block", "options"}
"""The keys by which a table names a plugin: with another value than was meant, the table would name another plugin."""


@frozen(kw_only=True)
class Reader:
    """Reads values, and collects what is wrong with them."""

    names: dict[Path, str] = field(factory=dict)
    """Names in messages of tables that have better names than their paths."""
    problems: list[Problem] = field(factory=list)
    parts: dict[Path, Any] = field(factory=dict)
    """The tables that could be read, without their wrong keys."""

    def read(self, value: Any, kind: Any, path: Path) -> Any:
        """Return a value as an annotation says; where it is not so, there are more problems, and the result is of no use."""
        value, (kind, _, bounds), known = plain(value), annotated(kind), len(self.problems)
        fitting = next((one for one in members(kind) if has_form(value, one)), None)
        found = value
        if fitting is None:
            self.add(path, f"must be {describe(kind)}", value, _meant(value, kind, path))
        elif fitting is not kind:  # of a union, whose members may have bounds of their own
            found = self.read(value, fitting, path)
        elif attrs.has(kind):
            found = self._table(value, kind, path)
        elif get_origin(kind) in MAPPINGS:
            found = {key: self.read(item, get_args(kind)[1], (*path, key)) for key, item in value.items()}
        elif get_origin(kind) in LISTS:
            kinds = enumerate(zip(value, item_types(kind, len(value)), strict=True))
            found = (list if get_origin(kind) is list else tuple)(self.read(*one, (*path, at)) for at, one in kinds)
        elif kind is float:
            found = float(value)
            if not math.isfinite(value):
                self.add(path, "must be a finite number", value)
        for bound in bounds if len(self.problems) == known else ():  # it says nothing of a value that has not its type
            try:
                bound(value)
            except Exception as error:  # noqa: BLE001  it may be an author's
                reason = str(error) or repr(error)
                self.add(path, reason if reason.startswith("must ") else f"is refused: {reason}", value)
        return found

    def _table(self, table: Mapping[str, Any], cls: Any, path: Path) -> Any:
        """Return a table as a class; where only keys with defaults are wrong, what is left of it is one of the `parts`."""
        fields, known = attrs.fields_dict(attrs.resolve_types(cls)), len(self.problems)
        if path and isinstance(path[-1], int):  # one of a list goes by its own name, where it has one
            own = isinstance(name := table.get("name"), str) and name
            self.names[path] = f"{path[-2]} {shown(name)}" if own else f"the {path[-2]} at index {path[-1]}"
        unknown = [key for key in table if key not in fields]
        # A misspelt key was meant to be one of these, which therefore is not missing.
        misspelt = {close for key in unknown for close in get_close_matches(key, fields, n=1)} - table.keys()
        given, wrong = dict[str, Any](), set(misspelt)
        for name, one in fields.items():
            before = len(self.problems)
            if name in table:
                given[one.alias or name] = self.read(table[name], one.type, (*path, name))
            elif one.default is attrs.NOTHING and name not in misspelt:
                message, meaning = f"{name} is missing in {self.table_name(path)}", annotated(one.type)[1]
                self.problems.append(
                    Problem(message=message, hint=f"{name}: {meaning}" * bool(meaning), path=(*path, name))
                )
            elif attrs.has(made := getattr(one.default, "factory", dict)):
                self.parts[*path, name] = made()
            if len(self.problems) > before:
                wrong.add(name)
                given.pop(one.alias or name, None)
        for key in unknown:
            message = f"unknown key {shown(key)} in {self.table_name(path)}"
            inside = [
                name for name, one in fields.items() if key in getattr(annotated(one.type)[0], "__annotations__", ())
            ]
            meant = " or ".join(f"{name}.{key}" for name in inside if not path)
            hint = f"write {meant}" if meant else suggestion(key, fields)
            self.problems.append(Problem(message=message, hint=hint, path=(*path, key)))
        # Without a key that has no default, or that names a plugin, the rest of a table would be another's.
        if not any(fields[name].default is attrs.NOTHING or name in _SELECTORS for name in wrong):
            self.parts[path] = cls(**given)
        return self.parts[path] if len(self.problems) == known else None

    def add(self, path: Path, rule: str, value: Any, hint: str = "") -> None:
        """Add what is wrong with the value at a path: the rule, the value that came, and what to do."""
        keys, text = path, shown(value)
        while keys and isinstance(keys[-1], int) and keys not in self.names:
            keys = keys[:-1]
        name = self.table_name(keys)
        if keys and keys not in self.names:  # a key, or an item of its list, and the table around it
            around = f" in {self.table_name(keys[:-1])}" if keys[:-1] else ""
            name = f"{keys[-1]}{''.join(f'[{at}]' for at in path[len(keys) :])}{around}"
        text = text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
        got = "" if "(got " in rule else f" (got {text})"
        self.problems.append(Problem(message=f"{name} {rule}{got}", hint=hint, path=path))

    def table_name(self, path: Path) -> str:
        """Return the name of a table: `[optimizer.clip]`, or a given name of it or around it."""
        for length in range(len(path), -1, -1):
            if name := self.names.get(path[:length]):
                rest = ".".join(map(str, path[length:]))
                return f"{rest} of {name}" if rest else name
        return f"[{'.'.join(map(str, path))}]" if path else "the specification"


def _meant(value: Any, kind: Any, path: Path) -> str:
    """Return a hint for a text in the place of another value: a word that is like it, or how it is written."""
    if not isinstance(value, str) or not isinstance((path or [0])[-1], str):
        return ""
    kinds = members(kind)
    close = suggestion(value, [str(word) for one in kinds if get_origin(one) is Literal for word in get_args(one)])
    if "did you mean" in close:
        return close
    named = any(attrs.has(one) and "name" in attrs.fields_dict(one) for one in kinds)
    return f"write {path[-1]}.name = {shown(value)}" if named else ""


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

"""Strict reading of TOML values: a value must have exactly its type and keep its bounds, and every problem is reported at once.

What is said of a key stands in its annotation, in tables of the specification and in options of plugins alike:

    lr: Annotated[float, "base learning rate", AtLeast(0)] = 0.1
    betas: Annotated[tuple[Annotated[float, AtLeast(0), LessThan(1)], ...], "shares", Length(2)] = (0.9, 0.999)

A bound is called with the value, and raises ValueError("must be odd"). Types that TOML does not have, as a tensor, are left to the code.

Decision: no value is converted. "3", true and 3.0 are not integers; only an integer may be given for a number.
"""

from __future__ import annotations

import math
import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import attrs
from attrs import field, frozen

from petra_graph.errors import Path, Problem, shown, suggestion


@frozen
class Bound:
    """What must hold of a number, or of the length of a list or text."""

    sign: str  # behind "must be "
    of: Any = field(repr=False)
    holds: Callable[[Any], bool] = field(repr=False)

    def __call__(self, value: Any) -> None:
        if isinstance(value, self.of) and not isinstance(value, bool) and not self.holds(value):
            raise ValueError(f"must be {self.sign}")


def _compared(sign: str, holds: Callable[[Any, float], bool]) -> Callable[[float], Bound]:
    return lambda limit: Bound(f"{sign} {limit}", int | float, lambda value: holds(value, limit))


AtLeast, GreaterThan = _compared(">=", operator.ge), _compared(">", operator.gt)
AtMost, LessThan = _compared("<=", operator.le), _compared("<", operator.lt)


def Length(exactly: int | None = None, *, at_least: int = 0) -> Bound:  # noqa: N802
    """The length of a list or a text: this one, or at least that."""
    if exactly is not None:
        return Bound(f"of length {exactly}", str | list | tuple, lambda value: len(value) == exactly)
    return Bound(f"of length >= {at_least}", str | list | tuple, lambda value: len(value) >= at_least)


LISTS, MAPPINGS = (tuple, list, Sequence), (dict, Mapping)
"""The origins of types that are arrays in TOML, and tables of free keys."""
_WORDS = {int: "an integer", float: "a number", str: "a string", FilePath: "a string", bool: "true or false"}


def annotated(kind: Any) -> tuple[Any, str, list[Callable[[Any], object]]]:
    """Return the type, the meaning and the bounds of a key, of its annotation."""
    kind, *said = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    return kind, " ".join(one for one in said if isinstance(one, str)), [one for one in said if callable(one)]


def members(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union that TOML has, or one that is anything; any other type is the only one."""
    if get_origin(kind) not in (Union, types.UnionType):
        return (kind,)
    return tuple(one for one in get_args(kind) if _form_of(annotated(one)[0]) or one is Any) or (Any,)


def _form_of(kind: Any) -> Any:
    """Return what a type is read by: Literal, list, dict or a type of single values; None: it takes any value."""
    origin = get_origin(kind) if get_args(kind) else None  # `typing.List` alone says nothing of its items
    if origin in LISTS:
        return list
    if origin in MAPPINGS or attrs.has(kind):
        return dict
    if origin in (Union, types.UnionType):
        return Union
    return Literal if origin is Literal else next((one for one in _WORDS if one is kind), None)


def _item_types(kind: Any, length: int) -> tuple[Any, ...]:
    """Return the type of each item of a list of any length, or else of the length that the type has."""
    first, *others = get_args(kind)
    return (first,) * length if others in ([], [...]) else (first, *others)


def _has_form(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, whatever is inside it; a list has the length of one that has a type for each item."""
    kind, *_ = annotated(kind)
    form = _form_of(kind)
    if form is Literal:
        return any(type(item) is type(value) and item == value for item in get_args(kind))  # true == 1 == 1.0
    if form is list:
        return isinstance(value, list | tuple) and len(_item_types(kind, len(value))) == len(value)
    if form is dict:
        return isinstance(value, Mapping)
    return form is None or type(value) is (str if form is FilePath else form) or (form is float and type(value) is int)


def describe(kind: Any) -> str:
    """Return a value of this type in words, with its bounds: "an integer >= 1", "[a string, ...]"."""
    kind, _, bounds = annotated(kind)
    form, words = _form_of(kind), ""
    if members(kind) != (kind,):
        words = ", or ".join(map(describe, members(kind)))
    elif form is Literal:
        words = f"{'one of ' * (len(get_args(kind)) > 1)}{', '.join(map(shown, get_args(kind)))}"
    elif form is list:
        words = f"[{', '.join('...' if one is ... else describe(one) for one in get_args(kind))}]"
    else:
        words = "a table" if form is dict else _WORDS.get(form, "anything")
    signs = " and ".join(one.sign for one in bounds if isinstance(one, Bound))
    return f"{words}{',' * (len(members(kind)) > 1)} {signs}" if signs else words


def keys_with(mark: object, cls: type) -> tuple[str, ...]:
    """Return the keys of a table that are of a type alone, `Path` for names of files, or have a bound, that of names of code."""

    def has_mark(kind: Any) -> bool:
        kind, _, bounds = annotated(kind)
        inside = [annotated(one) for one in members(kind)]
        return [one for one, *_ in inside] == [mark] or any(mark in said for *_, said in ((bounds,), *inside))

    return tuple(one.name for one in attrs.fields(cls) if has_mark(one.type))


_LONGEST_SHOWN = 60
_SELECTORS = {"name", "block", "options"}
"""The keys by which a table names a plugin: with another value than was meant, it would be another plugin's."""


@frozen(kw_only=True)
class Reader:
    """Reads values, and collects what is wrong with them."""

    problems: list[Problem] = field(factory=list)
    parts: dict[Path, Any] = field(factory=dict)  # the tables that could be read, without their wrong keys

    def read(self, value: Any, kind: Any, path: Path = ()) -> Any:
        """Return a value as an annotation says; where it is not so, there are more problems, and the result is of no use."""
        value, (kind, _, bounds), known = plain(value), annotated(kind), len(self.problems)
        fitting = next((one for one in members(kind) if _has_form(value, one)), None)
        form, found = _form_of(kind), value
        if fitting is None:
            words = [str(word) for one in members(kind) if get_origin(one) is Literal for word in get_args(one)]
            close = suggestion(value, words) if isinstance(value, str) else ""
            self.add(path, f"must be {describe(kind)}", value, close if "did you mean" in close else "")
        elif fitting is not kind:  # of a union, whose members may have bounds of their own
            found = self.read(value, fitting, path)
        elif attrs.has(kind):
            found = self._table(value, kind, path)
        elif form is dict:
            found = {key: self.read(item, get_args(kind)[1], (*path, key)) for key, item in value.items()}
        elif form is list:
            kinds = enumerate(zip(value, _item_types(kind, len(value)), strict=True))
            found = (list if get_origin(kind) is list else tuple)(self.read(*one, (*path, at)) for at, one in kinds)
        elif form is float:
            found = float(value)
            if not math.isfinite(value):
                self.add(path, "must be a finite number", value)
        for bound in bounds if len(self.problems) == known else ():  # it says nothing of a value that has not its type
            try:
                bound(value)
            except Exception as error:  # noqa: BLE001  it may be an author's
                self.add(path, str(error) or repr(error), value)
        return found

    def _table(self, table: Mapping[str, Any], cls: Any, path: Path) -> Any:
        """Return a table as a class; where only keys with defaults are wrong, what is left of it is one of the `parts`."""
        if any(isinstance(one.type, str) for one in attrs.fields(cls)):
            attrs.resolve_types(cls)
        fields, known = attrs.fields_dict(cls), len(self.problems)
        given, wrong = dict[str, Any](), set[str]()
        for name, one in fields.items():
            before = len(self.problems)
            if name in table:
                given[one.alias or name] = self.read(table[name], one.type, (*path, name))
            elif one.default is attrs.NOTHING:
                self.problems.append(Problem(message=f"{dotted((*path, name))} is missing", path=(*path, name)))
            elif attrs.has(made := getattr(one.default, "factory", dict)):
                self.parts[*path, name] = made()
            if len(self.problems) > before:
                wrong.add(name)
                given.pop(one.alias or name, None)
        for key in (key for key in table if key not in fields):
            wrong.update(get_close_matches(key, fields, n=1))  # which it was meant to be
            message = f"unknown key {dotted((*path, key))}"
            self.problems.append(Problem(message=message, hint=suggestion(key, fields), path=(*path, key)))
        # Without a key that has no default, or that names a plugin, the rest of a table would be another's.
        if not any(fields[name].default is attrs.NOTHING or name in _SELECTORS for name in wrong):
            self.parts[path] = cls(**given)
        return self.parts[path] if len(self.problems) == known else None

    def add(self, path: Path, rule: str, value: Any, hint: str = "") -> None:
        """Add what is wrong with the value at a path: the rule, the value that came, and what to do."""
        text = shown(value)
        text = text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
        got = "" if "(got " in rule else f" (got {text})"
        self.problems.append(Problem(message=f"{dotted(path)}: {rule}{got}", hint=hint, path=path))


def dotted(path: Path) -> str:
    """Return a path as `--set` takes it."""
    return ".".join(map(str, path))


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

"""Strict reading of TOML values: a value must have exactly its type, and every problem is reported at once.

Decision: no value is converted. "3", true and 3.0 are not integers; only an integer may be given for a number. A silent
conversion would hide a mistake of the author until later. A field's validator runs when its value is read, not when the
whole table is built, so that one pass reports values out of range together with unknown keys. cattrs would need a hook
for each form of type to do the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from functools import reduce
from operator import getitem
from typing import Any, TypeVar, get_args

import attrs
from attrs import field, frozen

from petra_graph.errors import Path, Problem, shown, suggestion
from petra_graph.spec.bounds import OutOfBounds
from petra_graph.spec.value_types import (
    describe,
    is_list,
    is_literal,
    is_mapping,
    is_table,
    is_union,
    item_types,
    members,
    plain,
)

T = TypeVar("T")
_LONGEST_SHOWN = 60


def structure_as(
    kind: type[T], value: Any, path: Path, *, names: Mapping[Path, str] | None = None
) -> tuple[T | None, tuple[Problem, ...]]:
    """Return a value read strictly as a type.

    Args:
        kind: an attrs class, or any type of the values in one.
        value: as TOML gave it.
        path: its path in the specification.
        names: names in messages of tables that have better names than their paths.

    Returns:
        the value and no problem, or None and the problems, whose paths begin with `path`.
    """
    reader = _Reader(names=names or {})
    found = reader.read(value, kind, path)
    return (None if reader.problems else found), tuple(reader.problems)


@frozen(kw_only=True)
class _Reader:
    names: Mapping[Path, str]
    problems: list[Problem] = field(factory=list)

    def read(self, value: Any, kind: Any, path: Path) -> Any:
        """Return a value as a type; where it is not of the type, there are more problems, and the result is of no use."""
        value = plain(value)
        if is_union(kind):
            kind = next((member for member in members(kind) if _has_form(value, member)), kind)
        if not _has_form(value, kind):
            self.mismatch(value, kind, path)
        elif attrs.has(kind):
            return self.table(value, kind, path)
        elif is_list(kind):
            types = item_types(kind, len(value))
            if types is None:
                return self.mismatch(value, kind, path)
            items = [self.read(item, of, (*path, at)) for at, (item, of) in enumerate(zip(value, types, strict=True))]
            return items if kind.__origin__ is list else tuple(items)
        elif is_mapping(kind):
            return {key: self.read(item, get_args(kind)[1], (*path, key)) for key, item in value.items()}
        elif kind is float:
            if not math.isfinite(value):
                self.add(path, f"must be a finite number (got {value})")
            return float(value)
        return value

    def table(self, table: Mapping[str, Any], cls: Any, path: Path) -> Any:
        attrs.resolve_types(cls)
        fields = {attribute.name: attribute for attribute in attrs.fields(cls) if attribute.init}
        unknown = [key for key in table if key not in fields]
        # A misspelt key was meant to be one of these, which therefore is not missing.
        misspelt = {close for key in unknown for close in get_close_matches(key, fields, n=1)}
        before, arguments = len(self.problems), {}
        for name, attribute in fields.items():
            if name in table:
                known = len(self.problems)
                arguments[attribute.alias or name] = found = self.read(table[name], attribute.type, (*path, name))
                if attribute.validator is not None and len(self.problems) == known:
                    self.validate(found, table[name], attribute, (*path, name))
            elif attribute.default is attrs.NOTHING and name not in misspelt:
                self.missing(attribute, path)
        for key in unknown:
            message = f"unknown key {shown(key)} in {self.table_name(path)}"
            hint = suggestion(key, fields)
            self.problems.append(Problem(message=message, hint=hint, path=(*path, key), at_key=True))
        if len(self.problems) > before:
            return None
        try:
            return cls(**arguments)
        except Exception as error:  # noqa: BLE001  a plugin's own check may raise anything
            message = f"{self.table_name(path)}: {str(error) or type(error).__name__}"
            self.problems.append(Problem(message=message, path=path))

    def validate(self, value: Any, raw: Any, attribute: attrs.Attribute[Any], path: Path) -> None:
        """Run a field's validator; a message of its own that begins with "must" continues the sentence that the value's name begins."""
        try:
            attribute.validator(None, attribute, value)  # type: ignore[misc]  # the caller has seen that there is one
        except OutOfBounds as error:
            for fault in error.faults:
                given = reduce(getitem, fault.path, raw)
                got = "" if isinstance(given, str | list | tuple) and not given else f" (got {_brief(given)})"
                hint = _did_you_mean(given, fault.allowed)
                self.add((*path, *fault.path), f"{fault.rule}{got}", hint)
        except Exception as error:  # noqa: BLE001  any function may be a validator
            reason = str(error.args[0]) if error.args else repr(error)
            rule = reason if reason.startswith("must ") else f"is refused: {reason}"
            self.add(path, rule if "(got " in rule else f"{rule} (got {_brief(raw)})")

    def missing(self, attribute: attrs.Attribute[Any], table: Path) -> None:
        path = (*table, attribute.name)
        is_header = isinstance(attribute.type, type) and attrs.has(attribute.type)
        message = (
            f"[{'.'.join(map(str, path))}] is missing"
            if is_header
            else f"{attribute.name} is missing in {self.table_name(table)}"
        )
        meaning = attribute.metadata.get("help", "")
        hint = f"{attribute.name}: {meaning}" if meaning else ""
        self.problems.append(Problem(message=message, hint=hint, path=path))

    def mismatch(self, value: Any, kind: Any, path: Path) -> None:
        allowed = [item for member in members(kind) if is_literal(member) for item in get_args(member)]
        self.add(path, f"must be {describe(kind)} (got {_brief(value)})", _did_you_mean(value, allowed))

    def add(self, path: Path, rule: str, hint: str = "") -> None:
        self.problems.append(Problem(message=f"{self.name(path)} {rule}", hint=hint, path=path))

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


def _has_form(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, whatever is inside it."""
    if kind is Any:
        return True
    if is_literal(kind):
        return any(type(item) is type(value) and item == value for item in get_args(kind))  # true == 1 == 1.0
    if is_list(kind):
        return isinstance(value, list | tuple)
    if is_table(kind):
        return isinstance(value, Mapping)
    return type(value) is kind or (kind is float and type(value) is int)


def _did_you_mean(value: Any, allowed: Any) -> str:
    hint = suggestion(value, [item for item in allowed if isinstance(item, str)]) if isinstance(value, str) else ""
    return hint if "did you mean" in hint else ""


def _brief(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."

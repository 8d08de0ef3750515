"""The problems of values that cannot be read, with hints of the likely intention, correctly written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import attrs
from attrs import field, frozen

from petra_graph.errors import Path, Problem, shown, suggestion
from petra_graph.spec.bound import Fault
from petra_graph.spec.formats import rename_hint

LONGEST_SHOWN = 60
WITHOUT_QUOTES = {
    "an integer": r"[+-]?\d+",
    "a number": r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?",
    "true or false": "true|false",
}
"""The form of a text that probably stands for a value of another type."""


@frozen(kw_only=True)
class RawValue:
    """A value as TOML gave it, with its path in the specification."""

    path: Path
    raw: Any
    names: Mapping[Path, str] = field(factory=dict)
    """Names in messages of tables that have better names than their paths."""

    def item(self, key: str | int) -> RawValue:
        """Return an item of this table or array."""
        return attrs.evolve(self, path=(*self.path, key), raw=self.raw[key])

    def table_name(self, path: Path | None = None) -> str:
        """Return the name of this table, or of the one at `path`: `[optimizer.clip]`, or a given name of it or around it."""
        path = self.path if path is None else path
        for length in range(len(path), 0, -1):
            name = self.names.get(path[:length])
            if name:
                rest = ".".join(str(part) for part in path[length:])
                return f"{rest} of {name}" if rest else name
        return f"[{'.'.join(str(part) for part in path)}]" if path else "the specification"

    def name(self) -> str:
        """Return the name of this value in messages: its key and the table around it."""
        keys = list(self.path)
        items = ""
        while keys and isinstance(keys[-1], int) and tuple(keys) not in self.names:
            items = f"[{keys.pop()}]{items}"
        if not keys or tuple(keys) in self.names:
            return self.table_name(tuple(keys))
        around = f" in {self.table_name(tuple(keys[:-1]))}" if keys[:-1] else ""
        return f"{keys[-1]}{items}{around}"


def mismatch(value: RawValue, expected: str, allowed: tuple[Any, ...]) -> Problem:
    """Return the problem of a value that is not `expected`; `allowed` are the values of its literal types."""
    message = f"{value.name()} must be {expected} (got {_brief(value.raw)})"
    return Problem(message=message, hint=_hint(value, expected, allowed), path=value.path)


def out_of_bounds(value: RawValue, fault: Fault) -> Problem:
    """Return the problem of a value, or of an item inside it, that breaks a bound."""
    at = reduce(RawValue.item, fault.path, value)
    empty = isinstance(at.raw, str | list) and not at.raw
    message = f"{at.name()} {fault.rule}" if empty else f"{at.name()} {fault.rule} (got {_brief(at.raw)})"
    return Problem(message=message, hint=_hint(at, "", fault.allowed), path=at.path)


def refused_value(value: RawValue, error: Exception) -> Problem:
    """Return the problem of a value that a validator other than our bounds refuses, in the validator's own words.

    A message that begins with "must" goes on with the sentence that the value's name begins.
    """
    reason = str(error.args[0]) if error.args else repr(error)
    rule = reason if reason.startswith("must ") else f"is refused: {reason}"
    got = "" if "(got " in rule else f" (got {_brief(value.raw)})"
    return Problem(message=f"{value.name()} {rule}{got}", path=value.path)


def refused_table(table: RawValue, error: Exception) -> Problem:
    """Return the problem of a table whose values do not fit together."""
    return Problem(message=f"{table.table_name()}: {str(error) or type(error).__name__}", path=table.path)


def missing_key(table: RawValue, attribute: attrs.Attribute[Any]) -> Problem:
    """Return the problem of a table without a required key."""
    name = attribute.name
    path = (*table.path, name)
    is_table = isinstance(attribute.type, type) and attrs.has(attribute.type)
    message = (
        f"[{'.'.join(str(part) for part in path)}] is missing"
        if is_table
        else f"{name} is missing in {table.table_name()}"
    )
    meaning = attribute.metadata.get("help", "")
    return Problem(message=message, hint=f"{name}: {meaning}" if meaning else "", path=path)


def unknown_key(table: RawValue, key: str, allowed: Iterable[str]) -> Problem:
    """Return the problem of a key that the table does not have."""
    message = f"unknown key {shown(key)} in {table.table_name()}"
    path = (*table.path, key)
    return Problem(message=message, hint=rename_hint(path) or suggestion(key, allowed), path=path, at_key=True)


def _hint(value: RawValue, expected: str, allowed: tuple[Any, ...]) -> str:  # noqa: PLR0911  one case a hint
    """Return a hint for a mismatch; "" where the intention is unclear."""
    raw, path = value.raw, value.path
    dotted = ".".join(str(part) for part in path)
    example = f"{path[-1]} = " if path and isinstance(path[-1], str) else ""
    if allowed and isinstance(raw, str):
        hint = suggestion(raw, [item for item in allowed if isinstance(item, str)])
        return hint if "did you mean" in hint else ""
    if isinstance(raw, str) and re.fullmatch(WITHOUT_QUOTES.get(expected, "(?!)"), raw):
        return f"write it without quotes: {example}{raw}"
    if expected == "a string" and isinstance(raw, bool | int | float):
        return f'write it in quotes: {example}"{shown(raw)}"'
    if expected == "a list of tables":
        return f"one [[{dotted}]] for each"
    if expected.startswith("a list of") and not isinstance(raw, list | dict):
        return f"write it in brackets: {example}[{shown(raw)}]"
    if expected == "a table" and example and isinstance(raw, list):
        return f"single brackets make a table: [{dotted}]"
    if expected == "a table" and example and isinstance(raw, str):
        return f"for example [{dotted}] with name = {shown(raw)}"
    return ""


def _brief(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."

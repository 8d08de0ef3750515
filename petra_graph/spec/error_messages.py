"""The problems of values that cannot be read, with hints of the likely intention, correctly written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, time
from functools import cache, reduce
from typing import Any, get_args

import attrs
from attrs import field, frozen

from petra_graph.errors import USUAL_KEYS, Path, Problem, shown, shown_key, suggestion
from petra_graph.spec.bounds import Fault
from petra_graph.spec.format_versions import what_became_of
from petra_graph.spec.model import Spec
from petra_graph.spec.value_types import flat, is_list, members, plain

LONGEST_SHOWN = 60
NAMED_NETWORK = "[graph] lists nodes; a network with a name is [architecture]"
WITHOUT_QUOTES = {
    "an integer": r"[+-]?\d+",
    "a number": r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?",
    "true or false": "true|false",
}
"""The form of a text that probably means a value of another type."""


@frozen(kw_only=True)
class RawValue:
    """A value as TOML gave it, with its path in the specification."""

    path: Path
    raw: Any = field(converter=plain)
    names: Mapping[Path, str] = field(factory=dict)
    """Names in messages of tables that have better names than their paths."""
    unit: str = ""
    """Of a number, as its key declares it."""

    def item(self, key: str | int) -> RawValue:
        return attrs.evolve(self, path=(*self.path, key), raw=self.raw[key])

    def table_name(self, path: Path | None = None) -> str:
        """Return the name of this table, or of the one at `path`: `[optimizer.clip]`, or a given name of it or around it."""
        path = self.path if path is None else path
        for length in range(len(path), 0, -1):
            if name := self.names.get(path[:length]):
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
    return _with_hint(value, message, *_hint(value, expected, allowed))


def out_of_bounds(value: RawValue, fault: Fault) -> Problem:
    """Return the problem of a value, or of an item inside it, that breaks a bound."""
    at = reduce(RawValue.item, fault.path, value)
    empty = isinstance(at.raw, str | list) and not at.raw
    message = f"{at.name()} {fault.rule}" if empty else f"{at.name()} {fault.rule} (got {_brief(at.raw)})"
    return _with_hint(at, message, *_hint(at, "", fault.allowed))


def refused_value(value: RawValue, error: Exception) -> Problem:
    """Return the problem of a value that a validator other than our bounds refuses, in the validator's own words.

    A message that begins with "must" continues the sentence that the value's name begins.
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
    header = f"[{'.'.join(str(part) for part in path)}]"
    message = f"{header} is missing" if is_table else f"{name} is missing in {table.table_name()}"
    meaning = attribute.metadata.get("help", "")
    hint = "one [[graph.node]] for each" if path == ("graph", "node") else f"{name}: {meaning}" if meaning else ""
    return Problem(message=message, hint=hint, path=path)


def unknown_key(table: RawValue, key: str, allowed: Iterable[str]) -> Problem:
    """Return the problem of a key that the table does not have."""
    message = f"unknown key {shown(key)} in {table.table_name()}"
    path = (*table.path, key)
    became = what_became_of(path)
    hint = became or suggestion(key, allowed)
    usual = USUAL_KEYS.get(key, key)
    if table.path == ("graph",) and key in {"name", "options"}:
        hint = NAMED_NETWORK
    elif not table.path and usual == "lr":
        hint = "lr is an option of the optimizer: optimizer.options.lr"
    elif usual in headers_by_key() and not became:
        hint = f"{usual} is a key of {', '.join(headers_by_key()[usual])}"
    return Problem(message=message, hint=hint, path=path, at_key=True)


def _with_hint(value: RawValue, message: str, words: str, text: str = "") -> Problem:
    """Return a problem with its hint, as a file has it and as a shell does: `words`, then the value as TOML where there is a `text`."""
    if not text:
        return Problem(message=message, hint=words, path=value.path)
    key = f"{value.path[-1]} = " if isinstance(value.path[-1], str) else ""  # an item of an array has none
    dotted = ".".join(shown_key(str(part)) for part in value.path)
    return Problem(
        message=message,
        hint=f"{words}{key}{text}",
        set_hint=f"{words}--set {shlex.quote(f'{dotted}={text}')}",
        path=value.path,
    )


def _hint(value: RawValue, expected: str, allowed: tuple[Any, ...]) -> tuple[str, ...]:  # noqa: PLR0911  one case a hint
    """Return the words of a hint, and the value that they end with if there is one; no words if the intention is unclear."""
    raw, dotted = value.raw, ".".join(map(str, value.path))
    if allowed and isinstance(raw, str):
        hint = suggestion(raw, [item for item in allowed if isinstance(item, str)])
        return (hint if "did you mean" in hint else "",)
    if isinstance(raw, str) and re.fullmatch(WITHOUT_QUOTES.get(expected, "(?!)"), raw):
        return "write it without quotes: ", raw
    if isinstance(raw, str) and value.unit and expected in WITHOUT_QUOTES:
        return (f"write the number alone; its unit is {value.unit}",)
    if expected == "a string" and isinstance(raw, bool | int | float | date | time):
        return "write it in quotes: ", shown(shown(raw))
    if expected == "a list of tables":
        return (f"one [[{dotted}]] for each",)
    if expected.startswith("a list of") and not isinstance(raw, list | dict):
        return "write it in brackets: ", f"[{shown(raw)}]"
    if expected == "a table" and isinstance(raw, list) and all(isinstance(item, Mapping) for item in raw):
        return (f"single brackets make a table: [{dotted}]",)
    if expected == "a table" and value.path:
        return (NAMED_NETWORK,) if value.path == ("graph",) else ("write its keys in braces: ", "{ KEY = VALUE }")
    if isinstance(raw, Mapping) and allowed and value.path:
        quoted = ", ".join(f"{shown(name)} = {text}" for name, text in flat(raw, str(value.path[-1])))
        return (f"a name with a dot in it stands in quotes: {quoted}",)
    return ("",)


@cache
def headers_by_key() -> Mapping[str, tuple[str, ...]]:
    """Return the header of every table that has a key, by the key: "[run]", "[[graph.node]]", "the top of the file"."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(("extends", "format"), ("the top of the file",))
    for header, key in _keys(Spec, "", "the top of the file"):
        found[key] = (*found.get(key, ()), header)
    return found


def _keys(cls: type, dotted: str, header: str) -> Iterator[tuple[str, str]]:
    """Yield the keys of a table, and of the tables within it, each after the header of its table."""
    for attribute in attrs.fields(attrs.resolve_types(cls)):
        yield header, attribute.name
        name = f"{dotted}.{attribute.name}" if dotted else attribute.name
        for kind in members(attribute.type):
            if attrs.has(kind):
                yield from _keys(kind, name, f"[{name}]")
            elif is_list(kind) and attrs.has(get_args(kind)[0]):
                yield from _keys(get_args(kind)[0], name, f"[[{name}]]")


def _brief(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."

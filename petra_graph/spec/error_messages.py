"""The problems of values that cannot be read, with hints of the likely intention, correctly written."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, time
from functools import reduce
from typing import Any

import attrs
from attrs import field, frozen

from petra_graph.errors import USUAL_KEYS, Path, Problem, shown, shown_key, suggestion
from petra_graph.spec.bounds import Fault
from petra_graph.spec.format_versions import what_became_of
from petra_graph.spec.value_types import flat, plain

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

    def item(self, key: str | int) -> RawValue:
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
    return _with_hint(value, message, _hint(value, expected, allowed))


def no_table(value: RawValue, cls: type | None, fitting: tuple[str, Any] | None) -> Problem:
    """Return the problem of a value in the place of a table.

    Args:
        cls: of the table; None: keys with values of any kind, as options are.
        fitting: the key of the table that the value would do for, with the value; None: there is none.
    """
    message = f"{value.name()} must be a table (got {_brief(value.raw)})"
    return _with_hint(value, message, _table_hint(value, cls, fitting))


def out_of_bounds(value: RawValue, fault: Fault) -> Problem:
    """Return the problem of a value, or of an item inside it, that breaks a bound."""
    at = reduce(RawValue.item, fault.path, value)
    empty = isinstance(at.raw, str | list) and not at.raw
    message = f"{at.name()} {fault.rule}" if empty else f"{at.name()} {fault.rule} (got {_brief(at.raw)})"
    return _with_hint(at, message, _hint(at, "", fault.allowed))


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
    message = (
        f"[{'.'.join(str(part) for part in path)}] is missing"
        if is_table
        else f"{name} is missing in {table.table_name()}"
    )
    meaning = attribute.metadata.get("help", "")
    hint = "one [[graph.node]] for each" if path == ("graph", "node") else f"{name}: {meaning}" if meaning else ""
    return Problem(message=message, hint=hint, path=path)


def unknown_key(table: RawValue, key: str, allowed: Iterable[str], elsewhere: Sequence[str] = ()) -> Problem:
    """Return the problem of a key that the table does not have; `elsewhere` are the headers of tables that have it."""
    message = f"unknown key {shown(key)} in {table.table_name()}"
    path = (*table.path, key)
    became = what_became_of(path)
    hint = became or suggestion(key, allowed)
    if table.path == ("graph",) and key in {"name", "options"}:
        hint = NAMED_NETWORK
    elif not table.path and USUAL_KEYS.get(key, key) == "lr":
        hint = "lr is an option of the optimizer: optimizer.options.lr"
    elif elsewhere and not became:
        hint = f"{USUAL_KEYS.get(key, key)} is a key of {', '.join(elsewhere)}"
    return Problem(message=message, hint=hint, path=path, at_key=True)


@frozen(kw_only=True)
class _Hint:
    """What to write in place of a value."""

    words: str = ""
    """Which end where the value begins."""
    keys: tuple[str, ...] = ()
    """Below the value's own; the value is that of the last one."""
    text: str | None = None
    """The value, as TOML; None: the words say it all."""


def _with_hint(value: RawValue, message: str, hint: _Hint) -> Problem:
    """Return a problem with its hint, as a file has it and as a shell does."""
    if hint.text is None:
        return Problem(message=message, hint=hint.words, path=value.path)
    path = (*value.path, *hint.keys)
    key = f"{path[-1]} = " if isinstance(path[-1], str) else ""  # an item of an array has none
    dotted = ".".join(shown_key(str(part)) for part in path)
    words = "for example " if hint.keys else hint.words
    return Problem(
        message=message,
        hint=f"{hint.words}{key}{hint.text}",
        set_hint=f"{words}--set {shlex.quote(f'{dotted}={hint.text}')}",
        path=value.path,
    )


def _hint(value: RawValue, expected: str, allowed: tuple[Any, ...]) -> _Hint:  # noqa: PLR0911  one case a hint
    """Return what to write for a mismatch; nothing where the intention is unclear."""
    raw, path = value.raw, value.path
    if allowed and isinstance(raw, str):
        hint = suggestion(raw, [item for item in allowed if isinstance(item, str)])
        return _Hint(words=hint if "did you mean" in hint else "")
    if isinstance(raw, str) and re.fullmatch(WITHOUT_QUOTES.get(expected, "(?!)"), raw):
        return _Hint(words="write it without quotes: ", text=raw)
    if isinstance(raw, str) and expected == "true or false" and raw.lower() in {"true", "false"}:
        return _Hint(words="write it without quotes, in small letters: ", text=raw.lower())
    if expected == "a string" and isinstance(raw, bool | int | float | date | time):
        return _Hint(words="write it in quotes: ", text=shown(shown(raw)))
    if expected == "a list of tables":
        return _Hint(words=f"one [[{'.'.join(str(part) for part in path)}]] for each")
    if expected.startswith("a list of") and not isinstance(raw, list | dict):
        return _Hint(words="write it in brackets: ", text=f"[{shown(raw)}]")
    if isinstance(raw, Mapping) and allowed and path:
        quoted = ", ".join(f"{shown(name)} = {text}" for name, text in flat(raw, str(path[-1])))
        return _Hint(words=f"a name with a dot in it stands in quotes: {quoted}")
    return _Hint()


def _table_hint(value: RawValue, cls: type | None, fitting: tuple[str, Any] | None) -> _Hint:
    raw, path = value.raw, value.path
    dotted = ".".join(str(part) for part in path)
    if isinstance(raw, list) and raw and all(isinstance(item, Mapping) for item in raw):
        return _Hint(words=f"single brackets make a table: [{dotted}]")
    if cls is None:
        pairs = _assignments(raw)
        return _Hint(words="options are a table: ", text=pairs or "{ KEY = VALUE }")
    if fitting is None and path == ("graph",):
        return _Hint(words=f"{NAMED_NETWORK} with ", keys=("name",), text=shown(raw))
    if fitting is not None:
        return _Hint(words=f"for example [{dotted}] with ", keys=(fitting[0],), text=shown(fitting[1]))
    return _Hint()


def _assignments(raw: Any) -> str:
    """Return the table that a text such as "depth=18" or a list of such texts means; "" where it means none."""
    texts = [raw] if isinstance(raw, str) else raw
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return ""
    found: dict[str, Any] = {}
    for text in (part for given in texts for part in given.split(",")):
        try:
            found |= tomllib.loads(text)
        except ValueError:
            key, equals, word = (part.strip() for part in text.partition("="))
            if not equals or not re.fullmatch(r"[\w-]+", key):
                return ""
            found[key] = word
    return shown(found) if found else ""


def _brief(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."

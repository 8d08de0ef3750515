"""The problems of a table, from the exceptions that structuring it raised.

cattrs raises one group of exceptions for a whole table, nested as the table is. Each leaf becomes one `Problem` with
its exact path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import attrs
from attrs import field, frozen
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError, IterableValidationError

from petra_graph.errors import Path, Problem, shown, suggestion
from petra_graph.spec.hints import hint_for
from petra_graph.spec.strict import Mismatch, OutOfRange

LONGEST_SHOWN = 60
BOUNDS = {">=": "at least", ">": "greater than", "<=": "at most", "<": "less than"}


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

    def table_name(self) -> str:
        """Return the name of this table in messages."""
        return table_name(self.path, self.names)

    def name(self) -> str:
        """Return the name of this value in messages: its key and the table around it."""
        keys = list(self.path)
        items = ""
        while keys and isinstance(keys[-1], int) and tuple(keys) not in self.names:
            items = f"[{keys.pop()}]{items}"
        if not keys or tuple(keys) in self.names:
            return table_name(tuple(keys), self.names)
        around = f" in {table_name(tuple(keys[:-1]), self.names)}" if keys[:-1] else ""
        return f"{keys[-1]}{items}{around}"


def table_name(path: Path, names: Mapping[Path, str]) -> str:
    """Return the name of the table at `path` in messages: `[optimizer.clip]`, or a given name of it or around it."""
    for length in range(len(path), 0, -1):
        name = names.get(path[:length])
        if name:
            rest = ".".join(str(part) for part in path[length:])
            return f"{rest} of {name}" if rest else name
    return f"[{'.'.join(str(part) for part in path)}]" if path else "the specification"


def explain(error: BaseException, value: RawValue) -> Iterator[Problem]:
    """Yield every problem in an exception that structuring `value` raised."""
    if isinstance(error, ClassValidationError):
        yield from _class_problems(error, value)
    elif isinstance(error, IterableValidationError):
        for inner, note in error.group_exceptions()[0]:
            yield from explain(inner, value.item(note.index))
    elif isinstance(error, Mismatch):
        message = f"{value.name()} must be {error.expected} (got {_brief(error.value)})"
        yield Problem(message=message, hint=hint_for(error, value.path), path=value.path)
    elif isinstance(error, OutOfRange):
        yield Problem(message=f"{value.name()} {_range(error.reason, value.raw)}", path=value.path)
    else:
        yield Problem(message=f"{value.name()}: {_text(error)}", path=value.path)


def _class_problems(error: ClassValidationError, value: RawValue) -> Iterator[Problem]:
    noted, others = error.group_exceptions()
    allowed = [attribute.name for attribute in attrs.fields(error.cl)]
    extra = [key for inner in others if isinstance(inner, ForbiddenExtraKeysError) for key in inner.extra_fields]
    # A misspelt key stands for one of these, which therefore is not missing.
    misspelt = {close for key in extra for close in get_close_matches(key, allowed, n=1)}
    for inner, note in noted:
        if note.name in value.raw:
            yield from explain(inner, value.item(note.name))
        elif note.name not in misspelt:
            yield _missing(error.cl, note.name, value)
    for inner in others:
        if not isinstance(inner, ForbiddenExtraKeysError):
            yield Problem(message=f"{value.table_name()}: {_text(inner)}", path=value.path)
    for key in sorted(extra, key=list(value.raw).index):
        yield Problem(
            message=f"unknown key {shown(key)} in {value.table_name()}",
            hint=suggestion(key, allowed),
            path=(*value.path, key),
            at_key=True,
        )


def _missing(cls: type, name: str, value: RawValue) -> Problem:
    attribute = attrs.fields_dict(cls)[name]
    table = isinstance(attribute.type, type) and attrs.has(attribute.type)
    path = (*value.path, name)
    message = f"{table_name(path, {})} is missing" if table else f"{name} is missing in {value.table_name()}"
    meaning = attribute.metadata.get("help", "")
    return Problem(message=message, hint=f"{name}: {meaning}" if meaning else "", path=path)


def _range(reason: str, value: Any) -> str:
    """Rephrase the message of one of attrs' validators."""
    got = f"(got {_brief(value)})"
    bound = re.fullmatch(r"(Length of )?'\w+' must be (>=|>|<=|<) (.*?): .*", reason, re.DOTALL)
    if bound:
        length, comparison, limit = bound.groups()
        if not length:
            return f"must be {BOUNDS[comparison]} {limit} {got}"
        if (comparison, limit) == (">=", "1"):
            return "must not be empty"
        return f"must have {BOUNDS[comparison]} {limit} {'characters' if isinstance(value, str) else 'items'} {got}"
    rule = re.sub(r"^'\w+' (?=must )", "", reason)
    rule = re.sub(r"(must match regex .*) \(.* doesn't\)$", r"\1", rule, flags=re.DOTALL)
    if not rule.startswith("must "):
        rule = f"is refused: {rule}"
    return rule if "(got " in rule else f"{rule} {got}"


def _brief(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__

"""What was wrong with a table, from the exceptions that structuring it raised.

cattrs raises one group of exceptions for a whole table, nested as the table is. Each leaf becomes one `Problem` with
its exact path.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import attrs
from attrs import field, frozen
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError, IterableValidationError

from petra_graph.errors import Path, Problem, shown, suggestion
from petra_graph.spec.mend import mend
from petra_graph.spec.strict import Mismatch, OutOfRange

LONGEST_SHOWN = 60
BOUNDS = {">=": "at least", ">": "greater than", "<=": "at most", "<": "less than"}


@frozen(kw_only=True)
class Place:
    """A value that is being explained: where it is in the specification, and what it is."""

    path: Path
    raw: Any
    names: Mapping[Path, str] = field(factory=dict)
    """What to call the tables that have better names than their paths."""

    def inside(self, key: str | int) -> Place:
        """Return the place of an item."""
        return attrs.evolve(self, path=(*self.path, key), raw=self.raw[key])

    def table(self) -> str:
        """Return what to call this table."""
        return table_name(self.path, self.names)

    def value(self) -> str:
        """Return what to call this value: its key, and the table around it."""
        keys = list(self.path)
        items = ""
        while keys and isinstance(keys[-1], int) and tuple(keys) not in self.names:
            items = f"[{keys.pop()}]{items}"
        if not keys or tuple(keys) in self.names:
            return table_name(tuple(keys), self.names)
        around = table_name(tuple(keys[:-1]), self.names) if keys[:-1] else ""
        return f"{keys[-1]}{items} in {around}" if around else f"{keys[-1]}{items}"


def table_name(path: Path, names: Mapping[Path, str]) -> str:
    """Return what to call the table at `path`: `[optimizer.clip]`, or the name that it or a table around it has."""
    for length in range(len(path), 0, -1):
        name = names.get(path[:length])
        if name:
            rest = ".".join(str(part) for part in path[length:])
            return f"{rest} of {name}" if rest else name
    return f"[{'.'.join(str(part) for part in path)}]" if path else "the specification"


def explain(error: BaseException, place: Place) -> Iterator[Problem]:
    """Yield every problem in an exception that structuring `place.raw` raised."""
    if isinstance(error, ClassValidationError):
        yield from _explain_class(error, place)
    elif isinstance(error, IterableValidationError):
        for inner, item in error.group_exceptions()[0]:
            yield from explain(inner, place.inside(item.index))
    elif isinstance(error, Mismatch):
        yield _mismatch(error, place)
    elif isinstance(error, OutOfRange):
        yield _out_of_range(error, place)
    else:
        yield Problem(message=f"{place.value()}: {_text(error)}", path=place.path)


def _explain_class(error: ClassValidationError, place: Place) -> Iterator[Problem]:
    noted, others = error.group_exceptions()
    meant = _meant(error.cl, others)
    for inner, note in noted:
        if note.name in place.raw:
            yield from explain(inner, place.inside(note.name))
        elif note.name not in meant:
            yield _missing(error.cl, note.name, place)
    for inner in others:
        if isinstance(inner, ForbiddenExtraKeysError):
            yield from _unknown(inner.cl, inner.extra_fields, place)
        else:
            yield Problem(message=f"{place.table()}: {_text(inner)}", path=place.path)


def unknown_key(key: str, allowed: Iterable[str], place: Place) -> Problem:
    """Return the problem of a key that the table at `place` does not have."""
    return Problem(
        message=f"unknown key {shown(key)} in {place.table()}",
        hint=suggestion(key, allowed),
        path=(*place.path, key),
        at_key=True,
    )


def brief(value: Any) -> str:
    """Write a value as TOML, shortened where it is long."""
    text = shown(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def _unknown(cls: type, extra: Iterable[str], place: Place) -> Iterator[Problem]:
    allowed = [attribute.name for attribute in attrs.fields(cls)]
    for key in sorted(extra, key=list(place.raw).index):
        yield unknown_key(key, allowed, place)


def _meant(cls: type, errors: Iterable[BaseException]) -> set[str]:
    """Return the keys that misspelt ones stand for; that these are missing is no news."""
    names = [attribute.name for attribute in attrs.fields(cls)]
    extra = {key for error in errors if isinstance(error, ForbiddenExtraKeysError) for key in error.extra_fields}
    return {close for key in extra for close in get_close_matches(key, names, n=1)}


def _missing(cls: type, name: str, place: Place) -> Problem:
    attribute = attrs.fields_dict(cls)[name]
    table = isinstance(attribute.type, type) and attrs.has(attribute.type)
    message = f"{table_name((*place.path, name), {})} is missing" if table else f"{name} is missing in {place.table()}"
    meaning = attribute.metadata.get("help", "")
    return Problem(message=message, hint=f"{name}: {meaning}" if meaning else "", path=(*place.path, name))


def _mismatch(error: Mismatch, place: Place) -> Problem:
    message = f"{place.value()} must be {error.expected} (got {brief(error.value)})"
    return Problem(message=message, hint=mend(error, place.path), path=place.path)


def _out_of_range(error: OutOfRange, place: Place) -> Problem:
    choice = re.match(r"'\w+' must be in (.*) \(got ", error.reason, re.DOTALL)
    if choice:
        with contextlib.suppress(ValueError, SyntaxError):
            allowed = tuple(ast.literal_eval(choice[1]))
            listed = ", ".join(shown(value) for value in allowed)
            return _mismatch(Mismatch(f"one of {listed}", place.raw, allowed=allowed), place)
    return Problem(message=f"{place.value()} {_range(error.reason, place.raw)}", path=place.path)


def _range(reason: str, value: Any) -> str:
    """Rephrase the message of one of attrs' validators."""
    got = f"(got {brief(value)})"
    bound = re.fullmatch(r"(Length of )?'\w+' must be (>=|>|<=|<) (.*?): .*", reason, re.DOTALL)
    if bound and bound[1]:
        if bound[2] == ">=" and bound[3] == "1":
            return "must not be empty"
        what = "characters" if isinstance(value, str) else "items"
        return f"must have {BOUNDS[bound[2]]} {bound[3]} {what} {got}"
    if bound:
        return f"must be {BOUNDS[bound[2]]} {bound[3]} {got}"
    stated = re.sub(r"^'\w+' (?=must )", "", reason)
    stated = re.sub(r"(must match regex .*) \(.* doesn't\)$", r"\1", stated, flags=re.DOTALL)
    if not stated.startswith("must "):
        stated = f"is refused: {stated}"
    return stated if "(got " in stated else f"{stated} {got}"


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__

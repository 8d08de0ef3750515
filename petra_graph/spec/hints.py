"""Hints for values of a wrong type: the likely intention, correctly written."""

from __future__ import annotations

import re

from petra_graph.errors import Path, shown, suggestion
from petra_graph.spec.strict import Mismatch

WITHOUT_QUOTES = {
    "an integer": r"[+-]?\d+",
    "a number": r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?",
    "true or false": "true|false",
}
"""The form of a text that probably stands for a value of another type."""


def hint_for(error: Mismatch, path: Path) -> str:
    """Return a hint for the value at `path`; "" where the intention is unclear."""
    value, expected = error.value, error.expected
    example = f"{path[-1]} = " if path and isinstance(path[-1], str) else ""
    if error.allowed and isinstance(value, str):
        hint = suggestion(value, [item for item in error.allowed if isinstance(item, str)])
        return hint if "did you mean" in hint else ""
    if isinstance(value, str) and re.fullmatch(WITHOUT_QUOTES.get(expected, "(?!)"), value):
        return f"write it without quotes: {example}{value}"
    if expected == "a string" and isinstance(value, bool | int | float):
        return f'write it in quotes: {example}"{shown(value)}"'
    return _shape_hint(error, path, example)


def _shape_hint(error: Mismatch, path: Path, example: str) -> str:
    value, expected = error.value, error.expected
    dotted = ".".join(str(part) for part in path)
    if expected == "a list of tables":
        return f"one [[{dotted}]] for each"
    if expected.startswith("a list of") and not isinstance(value, list | dict):
        return f"write it in brackets: {example}[{shown(value)}]"
    if expected == "a table" and example and isinstance(value, list):
        return f"single brackets make a table: [{dotted}]"
    if expected == "a table" and example and isinstance(value, str):
        return f"for example [{dotted}] with name = {shown(value)}"
    return ""

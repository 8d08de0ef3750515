"""The text of one specification: its values, and the line of each.

Decision: the standard parser gives the values, so that Python's library decides the meaning of TOML; the scanner of
`lines` gives only the lines.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path as FilePath
from typing import Any

from attrs import field, frozen

from petra_graph.errors import Path, Problem, SpecError, Where, shown
from petra_graph.spec.lines import find_lines

STDIN = "-"
IN_CODE = "<spec>"
"""The name in messages of a specification made in code."""
MOST_BYTES = 2**23
"""The longest text that is read."""
MOST_LEVELS = 100
"""Tables and arrays in one another."""
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rf"(?<![\w.\\-]){_PART}(?:\.[ \t]*+{_PART}){{{MOST_LEVELS}}}")
"""A dotted key of more parts: the parser would take minutes for a hundred thousand."""
TOO_DEEP = f"nested too deeply: more than {MOST_LEVELS} tables and arrays in one another"


@frozen(kw_only=True)
class Source:
    """One text with values: a file, the standard input, or one `--set`."""

    file: str
    """The file's name in messages."""
    text: str = ""
    values: Mapping[str, Any] = field(factory=dict)
    lines: Mapping[Path, int] = field(factory=dict)
    is_set: bool = False
    """Whether the text is that of a `--set`, or of a change that Python code makes."""

    @property
    def folder(self) -> str:
        """The folder of the file, as the user wrote it; "" for the working directory."""
        return "" if self.is_set else os.path.dirname(self.file)  # noqa: PTH120  keeps the path as the user wrote it

    def where(self, path: Path) -> Where:
        """Return the position of the key at `path`."""
        if self.file == IN_CODE and path:  # no text was written that has lines
            return Where(file=f"spec[{shown('.'.join(map(str, path)))}]")
        return Where(file=self.file, line=self.lines.get(path))


def read_source(path: str) -> Source:
    """Return the TOML text of a file, or of the standard input ("-"), with its values.

    Raises:
        SpecError: the text cannot be read, is empty, is not UTF-8, or is not TOML.
    """
    file = "<stdin>" if path == STDIN else path or "''"
    try:
        if path == STDIN:
            content = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with FilePath(os.path.expanduser(path)).open("rb") as opened:  # noqa: PTH111  pathlib's raises without such a home
                content = opened.read(MOST_BYTES + 1)
        text = content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise SpecError(_unreadable(file, error)) from None
    if len(content) > MOST_BYTES:
        raise SpecError(Problem(message=f"more than {MOST_BYTES // 2**20} MiB", where=Where(file=file)))
    if not text.strip():
        hint = "a specification needs [data] and one of [graph] and [architecture]"
        raise SpecError(Problem(message="the file is empty", hint=hint, where=Where(file=file)))
    return parse_source(text, file)


def parse_source(text: str, file: str) -> Source:
    """Return a TOML text, parsed; `file` is its name in messages.

    Raises:
        SpecError: the text is not TOML, or nested too deeply.
    """
    too_deep = Problem(message=TOO_DEEP, where=Where(file=file))
    if has_long_key(text):
        raise SpecError(too_deep)
    try:
        values = tomllib.loads(text)
    except ValueError as error:
        message = str(error)
        at = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
        line = int(at[1]) if at and at[1] else text.count("\n") + 1
        message = message[: at.start()] if at else message
        if message == "Invalid value":
            message += "; text needs quotes"
        problem = Problem(
            message=f"invalid TOML: {message[:1].lower()}{message[1:]}", where=Where(file=file, line=line)
        )
        raise SpecError(problem) from None
    except RecursionError:
        raise SpecError(too_deep) from None
    if levels(values) > MOST_LEVELS:
        raise SpecError(too_deep)
    return Source(file=file, text=text, values=values, lines=find_lines(text))


def has_long_key(text: str) -> bool:
    """Whether a dotted key has more parts than tables may lie in one another."""
    return _LONG_KEY.search(text) is not None


def levels(value: Any) -> int:
    """Return how many tables and arrays lie in one another at most."""
    most, inside = 0, [value]
    while inside := [
        item
        for outer in inside
        if isinstance(outer, Mapping | list)
        for item in (outer.values() if isinstance(outer, Mapping) else outer)
    ]:
        most += 1
    return most


def _unreadable(file: str, error: OSError | ValueError) -> Problem:
    hint = ""
    if isinstance(error, FileNotFoundError):
        path = FilePath(os.path.expanduser(file))  # noqa: PTH111  as above
        names = sorted(entry.name for entry in path.parent.glob("*.toml"))
        close = get_close_matches(path.name, names, n=1)
        hint = f"did you mean {str(path.parent / close[0])!r}?" if close else ""
    if isinstance(error, UnicodeDecodeError):
        line = error.object.count(b"\n", 0, error.start) + 1
        return Problem(message="not UTF-8 text", where=Where(file=file, line=line))
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return Problem(message=f"cannot be read: {reason}", hint=hint, where=Where(file=file))

"""The text of one specification, its values and their positions.

Decision: the standard parser gives the values, so that Python's library decides the meaning of TOML; a second parser
(`positions`) gives only the positions. Should the two disagree, a message loses its line, but no value changes.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path as FilePath
from typing import Any

from attrs import evolve, field, frozen

from petra_graph.errors import Path, Problem, SpecError, Where, shown
from petra_graph.spec.keys import MOST_LEVELS
from petra_graph.spec.positions import Span, find_spans
from petra_graph.spec.regular_file import open_regular

STDIN = "-"
IN_CODE = "<spec>"
"""The name in messages of a specification made in code."""
MOST_BYTES = 2**23
"""The longest text that is read."""
_MOST_DIGITS = 300  # as floats have
LONG_INTEGER = f"an integer of more than {_MOST_DIGITS} digits"
_LISTED = 5
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rf"(?<![\w.\\-]){_PART}(?:\.[ \t]*+{_PART}){{{MOST_LEVELS}}}")
TOO_DEEP = f"nested too deeply: more than {MOST_LEVELS} tables and arrays in one another"


@frozen(kw_only=True)
class Source:
    """One text with values: a file, the standard input, or one `--set`."""

    file: str
    """The file's name in messages."""
    text: str = ""
    values: Mapping[str, Any] = field(factory=dict)
    spans: Mapping[Path, Span] = field(factory=dict)
    is_set: bool = False
    """Whether the text is that of a `--set`, or of a change that Python code makes."""
    in_shell: bool = False
    """Whether it was typed there, with a shell's quotes."""

    @property
    def folder(self) -> str:
        """The folder of the file, as the user wrote it; "" for the working directory."""
        return "" if self.is_set else os.path.dirname(self.file)  # noqa: PTH120  keeps the path as the user wrote it

    def where(self, path: Path, *, at_key: bool = False) -> Where:
        """Return the position of the value at `path`, or of its key."""
        span = self.spans.get(path)
        if span is None:
            return Where(file=self.file)
        where = span.key if at_key else span.value
        # No text was written that has lines.
        return (
            Where(file=f"spec[{shown('.'.join(map(str, path)))}]", text=where.text) if self.file == IN_CODE else where
        )


def read_source(path: str, *, given: bool = True) -> Source:
    """Return the TOML text of a file, or of the standard input ("-"), with its values.

    Args:
        path: of the file.
        given: the user gave it; False: another file names it. That one must be a regular file, and a message shows no
            line of it unless it is called .toml: another person's specification must not make this user's files appear.

    Raises:
        SpecError: the text cannot be read, is empty, is not UTF-8, or is not TOML.
    """
    file = "<stdin>" if path == STDIN else path or "''"
    try:
        if path == STDIN:
            content = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with _expanded(path).open("rb") if given else open_regular(_expanded(path)) as opened:
                content = opened.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise SpecError(_unreadable(file, error)) from None
    if len(content) > MOST_BYTES:
        message = f"more than {MOST_BYTES // 2**20} MiB, and specifications are shorter"
        raise SpecError(Problem(message=message, hint="give the name of a TOML file", where=Where(file=file)))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"not UTF-8 text (byte 0x{content[error.start]:02x})"
        hint = "a specification is a TOML file; save it as UTF-8"
        raise SpecError(Problem(message=message, hint=hint, where=Where(file=file, line=line))) from None
    if not text.strip():
        message = "the file is empty" if path != STDIN else "the standard input is empty"
        hint = "a specification needs [data] and one of [graph] and [architecture]"
        raise SpecError(Problem(message=message, hint=hint, where=Where(file=file)))
    return parse_source(text, file, shows_lines=given or file.endswith(".toml"))


def parse_source(text: str, file: str, *, shows_lines: bool = True) -> Source:
    """Return a TOML text, parsed; `file` is its name in messages, which show the faulty line where `shows_lines`.

    Raises:
        SpecError: the text is not TOML; the position is the parser's.
    """
    if has_long_key(text):
        raise SpecError(_too_deep(text, file))
    try:
        values = tomllib.loads(text)
    except ValueError as error:
        problem = _invalid(text, file, str(error))
        if not shows_lines and problem.where is not None:
            problem = evolve(problem, hint="", where=evolve(problem.where, text=None))
        raise SpecError(problem) from None
    except RecursionError:
        raise SpecError(_too_deep(text, file)) from None
    if levels(values) > MOST_LEVELS:
        raise SpecError(_too_deep(text, file))
    source = Source(file=file, text=text, values=values, spans=find_spans(text, file))
    if long := list(islice(long_integers(values), _LISTED)):
        raise SpecError(Problem(message=LONG_INTEGER, where=source.where(path)) for path in long)
    return source


def has_long_key(text: str) -> bool:
    """Whether a dotted key has more parts than tables may lie in one another; the parser would take minutes for it."""
    return _LONG_KEY.search(text) is not None


def long_integers(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield where integers are that no float could be, and that Python may refuse to write as text."""
    if isinstance(value, int) and abs(value) >= 10**_MOST_DIGITS:
        yield path
    elif isinstance(value, Mapping | list):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from long_integers(item, (*path, key))


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


def _too_deep(text: str, file: str) -> Problem:
    """Return the problem, at the line with the most brackets that open a value, and dots of a key."""
    lines = text.split("\n")
    number, line = max(enumerate(lines, start=1), key=lambda one: sum(map(one[1].count, "[{.")))
    column = next((at for at, character in enumerate(line, start=1) if character in "[{"), 1)
    return Problem(message=TOO_DEEP, where=Where(file=file, line=number, column=column, text=line))


def _expanded(file: str) -> FilePath:
    return FilePath(os.path.expanduser(file))  # noqa: PTH111  pathlib's raises where no such home is known


def _unreadable(file: str, error: OSError | ValueError) -> Problem:
    path = _expanded(file)
    if isinstance(error, FileNotFoundError):
        message, hint = "no such file", _files_in(path.parent, path.name)
    elif isinstance(error, IsADirectoryError):
        message, hint = "a folder, not a file", _files_in(path)
    elif isinstance(error, PermissionError):
        message, hint = "no permission to read it", "see the file's owner and mode"
    else:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        message, hint = f"cannot be read: {reason}", ""
    return Problem(message=message, hint=hint, where=Where(file=file))


def _files_in(folder: FilePath, name: str = "") -> str:
    """Return a hint: the TOML file whose name is close to `name`, else some of those in the folder."""
    from difflib import get_close_matches

    if not folder.is_dir():
        return f"there is no folder {str(folder)!r} either"
    names = sorted(entry.name for entry in folder.glob("*.toml"))
    close = get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {str(folder / close[0])!r}?"
    return f"TOML files there: {', '.join(names[:8])}" if names else "there is no TOML file there"


_OF_A_VALUE = ("Invalid value", "Expected newline or end of document after a statement")
"""The parser's words for text that is not a value, and for a value that ends before its line does."""
_NOTHING = {"none", "null", "nil"}


def _written(key: str, value: str, *, after: bool) -> str:
    """Return how TOML writes a value that has no quotes; "" where that is unclear."""
    word = value.lower()
    if word in {"true", "false"}:
        return f"TOML writes it in small letters: {key} = {word}"
    if word in _NOTHING:
        return f"TOML has no such value: leave {key} out"
    if re.fullmatch(r"[+-]?(\.\d+|\d+\.)(e[+-]?\d+)?", word):
        number = float(word)
        return f"TOML's numbers have digits on both sides of the point: {key} = {number}"
    if not after or re.match(r"[\w.:/~-]+$", value):
        return f"text needs quotes: {key} = {shown(value)}"
    return ""


def _invalid(text: str, file: str, message: str) -> Problem:
    lines = text.split("\n")
    line, column = len(lines), len(lines[-1]) + 1
    at = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if at:
        message = message[: at.start()]
        if at[1]:
            line, column = int(at[1]), int(at[2])
    faulty = lines[line - 1] if line <= len(lines) else ""
    hint = ""
    pairs = re.finditer(r"([^\s=,{\[]+)\s*=\s*([^\s,\]}#\"'\[{][^,\]}#\"']*)", faulty)
    bare = next((pair for pair in pairs if pair.start(2) < column <= pair.end(2)), None)
    if bare and message in _OF_A_VALUE:
        hint = _written(bare[1], bare[2].strip(), after=message == _OF_A_VALUE[1])
    elif message.startswith(("Cannot declare", "Cannot overwrite")):
        hint = "each table and each key may occur only once"
    return Problem(
        message=f"invalid TOML: {message[:1].lower()}{message[1:]}",
        hint=hint,
        where=Where(file=file, line=line, column=column, text=faulty.rstrip() or None),
    )

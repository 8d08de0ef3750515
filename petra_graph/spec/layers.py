"""The values of a specification: of a file over all that it extends, with what `--set` says over them, and where each came from.

Tables merge key by key; any other value replaces the one below, as a whole table does that is `--set`. Some keys have no meaning
without another:

Decision: options belong to the plugin that their table names, and a schedule to its method. A layer that names another one drops
what was below: a learning-rate schedule changed from "step" to "cosine" cannot use milestones, and `--set method.name=backprop`
over `schedule = "1f1b"` means backpropagation under its own schedule. So that the order of `--set` does not decide what is left,
names are set before all other keys.

Decision: `graph` and `architecture` are two ways to give the network, so a layer with either drops the other from the layers below.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property, reduce
from pathlib import Path as FilePath
from typing import Any

import attrs
from attrs import field, frozen

from petra_graph.errors import Path, Problem, SpecError, Where, shown, suggestion
from petra_graph.spec.model import Spec

STDIN = "-"
IN_CODE = "<spec>"
"""The name in messages of a specification made in code."""
_DEFAULT_NAMES = {
    one.name: getattr(getattr(one.default, "factory", dict)(), "name", None) for one in attrs.fields(Spec)
}
"""The plugin or method of a table that names none."""


@frozen(kw_only=True, eq=False)
class Source:
    """Where values came from: a file, the standard input, code, or one `--set`."""

    file: str
    """The file's name in messages."""
    paths: frozenset[Path]
    """Of all values that it has."""
    text: str = ""
    values: Mapping[str, Any] = field(factory=dict)
    folder: str | None = None
    """That of the file, as the user wrote it, to which the names of other files are relative; None: of no file."""

    @cached_property
    def lines(self) -> Mapping[Path, int]:
        return find_lines(self.text)

    def where(self, path: Path) -> Where:
        """Return the position of the key at `path`."""
        if self.file == IN_CODE and path:  # no text was written that has lines
            return Where(file=f"spec[{shown('.'.join(map(str, path)))}]")
        return Where(file=self.file, line=self.lines.get(path))


@frozen(kw_only=True)
class Layers:
    """The values of several sources laid over one another."""

    values: Mapping[str, Any]
    files: tuple[Source, ...]
    """The specification that was given, then what it extends, from above to below."""
    settings: tuple[Source, ...] = ()
    """Each `--set`, the later ones over the earlier."""

    @classmethod
    def of(cls, *files: Source) -> Layers:
        """Lay the files over one another, the first one above all."""
        values: Mapping[str, Any] = reduce(_laid, (source.values for source in reversed(files)), {})
        return cls(values={key: value for key, value in values.items() if key != "extends"}, files=files)

    def origin(self, path: Path) -> tuple[Source, Path]:
        """Return what gave the value at a path, or else the nearest table around it, and the path of that."""
        lengths = range(len(path), 0, -1)
        around = next((path[:length] for length in lengths if _is_there(path[:length], self.values)), ())
        above = (*reversed(self.settings), *self.files)
        return next((source for source in above if around in source.paths), self.files[0]), around

    def located(self, name: Any, path: Path) -> Any:
        """Return the name of a file that the value at `path` is, relative to the working directory, where `--set` and code say it.

        One that begins with ~ or with a variable is left as it is.
        """
        source, around = self.origin(path)
        if not source.folder or around != path or not isinstance(name, str) or name.startswith(("~", "$")):
            return name
        return os.path.normpath(os.path.join(source.folder, name))  # noqa: PTH118  keeps the folder as the user wrote it

    def in_order(self, problems: Iterable[Problem]) -> tuple[Problem, ...]:
        """Return the problems with their positions, without repetition and in reading order."""
        order = {source.file: index for index, source in reversed([*enumerate((*self.files, *self.settings))])}
        found: dict[Problem, tuple[int, int]] = {}
        for problem in problems:
            source, path = self.origin(problem.path)
            where = problem.where or source.where(path)
            place = (order[where.file], where.line or 0) if where.file in order else (len(order), 0)
            found.setdefault(attrs.evolve(problem, where=where), place)
        return tuple(sorted(found, key=found.__getitem__))


def _is_there(path: Path, values: Any) -> bool:
    for key in path:
        of_list = isinstance(values, list) and key in range(len(values))
        if not (key in values if isinstance(values, Mapping) else of_list):
            return False
        values = values[key]
    return True


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every value inside `value`, tables and arrays included."""
    if path:
        yield path
    items = value if isinstance(value, Mapping) else dict(enumerate(value)) if isinstance(value, list) else {}
    for key, item in items.items():
        yield from _paths(item, (*path, key))


def _laid(below: Mapping[str, Any], above: Mapping[str, Any], path: Path = ()) -> dict[str, Any]:
    values = _left(below, above, path)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(values.get(key), Mapping)
        values[key] = _laid(values[key], value, (*path, key)) if both else value
    return values


def _left(below: Mapping[str, Any], above: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return what is left of a table below another one that may name another network, plugin or method."""
    if not path:
        gone = {"graph" for key in above if key == "architecture"} | {"architecture" for key in above if key == "graph"}
        return {key: value for key, value in below.items() if key not in gone}
    selector = "block" if path[0] == "graph" else "name"
    before = below.get(selector, _DEFAULT_NAMES.get(str(path[0])))
    if "options" in path or above.get(selector, before) == before:
        return dict(below)
    return {key: value for key, value in below.items() if key not in ("options", "schedule")}


# --- files ---


def read_layers(path: str) -> Layers:
    """Return the values of a file, or of the standard input ("-"), over those of all files that it extends.

    Args:
        path: relative to the working directory.

    Raises:
        SpecError: a file cannot be read, is not TOML, or extends itself; all problems.
    """
    return Layers.of(*_read_files(path, ()))


def _read_files(path: str, above: tuple[str, ...]) -> list[Source]:
    """Return a file and what it extends, from above to below; the files that extend it are `above`, without links."""
    source, chain = _read_source(path), (*above, os.path.realpath(path))
    given = source.values.get("extends", [])
    below, problems = list[Source](), list[Problem]()
    for index, name in enumerate(given if isinstance(given, list) else [given]):
        where = source.where(("extends", index) if isinstance(given, list) else ("extends",))
        if not isinstance(name, str) or not name:
            message = f"extends must be a file's name or a list of them (got {shown(name)})"
            problems.append(Problem(message=message, where=where))
            continue
        base = os.path.normpath(os.path.join(source.folder or "", os.path.expanduser(name)))  # noqa: PTH118, PTH111  as the user wrote it
        if os.path.realpath(base) in chain:
            problems.append(Problem(message=f"extends {shown(name)}, which extends this file again", where=where))
        elif not os.path.isfile(base):  # noqa: PTH113  a string until here
            message = f"extends {shown(name)}, but there is no such file"
            problems.append(Problem(message=message, hint=f"looked for {base!r}", where=where))
        else:
            try:
                below = [*_read_files(base, chain), *below]
            except SpecError as error:
                problems += error.problems
    if problems:
        raise SpecError(dict.fromkeys(problems))
    return [source, *below]


def _read_source(path: str) -> Source:
    file, hint = "<stdin>" if path == STDIN else path or "''", ""
    try:
        # pathlib's own `expanduser` raises where there is no such home.
        content = sys.stdin.buffer.read() if path == STDIN else FilePath(os.path.expanduser(path)).read_bytes()  # noqa: PTH111
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise SpecError(Problem(message="not UTF-8 text", where=Where(file=file, line=line))) from None
    except (OSError, ValueError) as error:
        near = FilePath(path)
        if close := get_close_matches(near.name, [one.name for one in near.parent.glob("*.toml")], n=1):
            hint = f"did you mean {str(near.with_name(close[0]))!r}?"
        message = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise SpecError(Problem(message=message, hint=hint, where=Where(file=file))) from None
    if not text.strip():
        hint = "a specification needs [data] and one of [graph] and [architecture]"
        raise SpecError(Problem(message="the file is empty", hint=hint, where=Where(file=file)))
    return parse_source(text, file, folder="" if path == STDIN else os.path.dirname(path))  # noqa: PTH120  as the user wrote it


def parse_source(text: str, file: str, folder: str | None = None) -> Source:
    """Return a TOML text, parsed. Raises SpecError: the text of this file is not TOML."""
    try:
        values = tomllib.loads(text)
        return Source(file=file, text=text, values=values, paths=frozenset(_paths(values)), folder=folder)
    except RecursionError:
        raise SpecError(Problem(message="nested too deeply", where=Where(file=file))) from None
    except ValueError as error:
        message, at = str(error), re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        message = message[: at.start()] if at else message
        line = int(at[1]) if at and at[1] else text.count("\n") + 1
        more = "; text needs quotes" if message == "Invalid value" else ""
        problem = Problem(message=f"invalid TOML: {message}{more}", where=Where(file=file, line=line))
        raise SpecError(problem) from None


def find_lines(text: str) -> dict[Path, int]:
    """Return the line of each key and table of a valid TOML text, counted from 1, which Python's parser does not tell.

    A header, or a pair with the lines over which its value goes on, is a TOML text by itself; so each is parsed alone, and what is inside it
    is at its first line. Paths include the indices of arrays: the third `[[graph.node]]` is ("graph", "node", 2).
    """
    lines: dict[Path, int] = {}
    last: dict[Path, int] = {}  # index of each array of tables, so far
    table, begun, first = Path(), "", 1
    for number, line in enumerate(text.split("\n"), start=1):
        begun += f"{line}\n"
        if "#" not in line and line.rstrip().endswith((",", "[")):
            continue  # in a long array; trying each line of it would take the square of its length
        try:
            values = tomllib.loads(begun)
        except tomllib.TOMLDecodeError:
            continue
        if begun.lstrip().startswith("["):
            table = ()
            for *_, key in _paths(values):
                if isinstance(key, int):  # a further table of an array
                    last[table] = last.get(table, -1) + 1
                if table in last:  # [graph.node.options] is the last node's
                    table = (*table, last[table])
                table = table if isinstance(key, int) else (*table, key)
                lines.setdefault(table, first)
            lines[table] = first  # also where a header or key further up has implied the table
        else:
            for path in _paths(values):
                lines.setdefault((*table, *path), first)
        begun, first = "", number + 1
    return lines


# --- what is set ---


class Change(str):
    """An assignment by Python code, which was not written as `--set`."""

    __slots__ = ()


@frozen(kw_only=True)
class Override:
    """One `--set`: a TOML key, in which an item of a list of tables goes by its `name` or its index, and a TOML value, or else text."""

    text: str
    keys: tuple[str, ...]
    value: Any


def _file_of(text: str) -> str:
    """Return what stands for a file's name in messages: the assignment, as it was given."""
    return f'changes["{text.partition("=")[0]}"]' if isinstance(text, Change) else f"--set {text}"


def _refusal(text: str, message: str, hint: str = "") -> SpecError:
    return SpecError(Problem(message=message, hint=hint, where=Where(file=_file_of(text))))


def parse_override(text: str) -> Override:
    """Return the override that KEY=VALUE describes.

    Raises:
        SpecError: the key or the value is missing, or the value opens a TOML string, array or table and does not close it.
    """
    key, equals, written = (part.strip() for part in text.partition("="))
    if not equals or not key or not written:
        raise _refusal(text, "not KEY=VALUE", "for example --set run.epochs=3; empty text is '\"\"'")
    try:
        *_, keys = _paths(tomllib.loads(f"{key} = 0"))
    except ValueError:
        raise _refusal(text, f"{shown(key)} is not a TOML key") from None
    value: Any = written
    try:
        parsed = tomllib.loads(f"value = {written}")
        value = parsed["value"] if list(parsed) == ["value"] else written
    except (ValueError, RecursionError) as error:
        if written[0] in "\"'[{":
            why = re.sub(r" \(at line \d+, column \d+\)$", "", str(error))
            raise _refusal(text, f"{written} is not a TOML value: {why}") from None
    return Override(text=text, keys=tuple(map(str, keys)), value=value)


def apply_overrides(layers: Layers, texts: Iterable[str]) -> tuple[Layers, list[Problem]]:
    """Return the layers with the overrides assigned, and the problems of those that cannot be."""
    overrides, problems = list[Override](), list[Problem]()
    for text in texts:
        try:
            overrides.append(parse_override(text))
        except SpecError as error:
            problems += error.problems
    for override in sorted(overrides, key=lambda one: one.keys[-1] not in {"name", "block"}):
        try:
            values, path = _put(layers.values, (), override)
        except SpecError as error:
            problems += error.problems
            continue
        around = [path[:n] for n in range(1, len(path)) if not _is_there(path[:n], layers.values)]
        source = Source(file=_file_of(override.text), paths=frozenset([*around, *_paths(override.value, path)]))
        layers = attrs.evolve(layers, values=values, settings=(*layers.settings, source))
    return layers, problems


def _put(container: Any, path: Path, override: Override) -> tuple[Any, Path]:
    """Return what is at a path with the override's value in it, and the path of that value: its keys, with indices for names."""
    if len(path) == len(override.keys):
        return override.value, path
    key: Any = override.keys[len(path)]
    if isinstance(container, list):
        names = [item.get("name") if isinstance(item, Mapping) else None for item in container]
        if key not in names and not (key.isdecimal() and int(key) < len(container)):
            hint = suggestion(key, [name for name in names if isinstance(name, str)])
            raise _refusal(override.text, f"{'.'.join(map(str, path))} has no item named {shown(key)}", hint)
        at = names.index(key) if key in names else int(key)
        inner, whole = _put(container[at], (*path, at), override)
        return [*container[:at], inner, *container[at + 1 :]], whole
    if not isinstance(container, Mapping):
        raise _refusal(override.text, f"{'.'.join(map(str, path))} is {shown(container)}, not a table")
    inner, whole = _put(container.get(key, {}), (*path, key), override)
    # An option of the architecture names no network, and so drops no graph.
    names_no_network = not path and override.keys[1:] not in ((), ("name",))
    return {**(container if names_no_network else _left(container, {key: inner}, path)), key: inner}, whole

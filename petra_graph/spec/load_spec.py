"""Specifications: files over all that they extend, with what `--set` says over them, or made in code; read, and written out.

Tables merge key by key; any other value replaces the one below, as a whole table does that is `--set`.

Decision: options belong to the plugin that their table names, and a schedule to its method: a layer that names another one drops what was
below. So that the order of `--set` does not decide what is left, names are set before all other keys. `graph` and `architecture` are two ways
to give the network: a layer with either drops the other from the layers below.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

import attrs
from attrs import field, frozen

from petra_graph.errors import Path, Problem, SpecError, Where, shown, suggestion
from petra_graph.spec.in_code import Change, toml_values
from petra_graph.spec.model import Spec
from petra_graph.spec.strict_values import Reader, dotted

STDIN, IN_CODE = "-", "<spec>"  # the names of the standard input, and of a specification made in code
Given = str | Spec  # a specification as a user gives it: a file's name, "-" for the standard input, or one made in code
_FILES = (("partition", "profile"), ("init", "weights"))  # keys of files, relative to the file that gives them
_DEFAULT_NAMES = {
    one.name: getattr(getattr(one.default, "factory", dict)(), "name", None) for one in attrs.fields(Spec)
}
"""The plugin or method of a table that names none."""


@frozen(kw_only=True)
class LoadedSpec:
    """A specification, or its problems, with the values that it was read from and where each was written."""

    values: Mapping[str, Any]
    places: Mapping[Path, Where]
    files: tuple[str, ...]  # the one that was given, which has the text, and those that it extends, above to below
    text: str
    spec: Spec | None = None  # None where there are problems
    parts: Mapping[Path, Any] = field(factory=dict)  # tables by path, without wrong keys: plugins of all are checked
    problems: tuple[Problem, ...] = ()  # located, and in reading order

    @property
    def folders(self) -> list[str]:
        """The absolute folders of the files; the current one for the standard input."""
        folders = [os.path.dirname(os.path.expanduser(one)) for one in self.files if one != IN_CODE]  # noqa: PTH111, PTH120
        return list(dict.fromkeys(map(os.path.abspath, folders)))  # no links resolved

    def located(self, name: Any, path: Path) -> Any:
        """Return the name of a file that the value at `path` is, relative to the working directory; one that begins with ~, $ or / is as it was."""
        where = self.places.get(path)
        if where is None or where.line is None or not isinstance(name, str) or name.startswith(("~", "$", "/")):
            return name
        return os.path.join(os.path.dirname(where.file), name)  # noqa: PTH118, PTH120  as the user wrote the folder

    def in_order(self, problems: Iterable[Problem]) -> tuple[Problem, ...]:
        """Return the problems at the places of their values, or of the tables around these, without repetition and in reading order."""
        found: dict[Problem, tuple[int, int]] = {}
        for problem in problems:
            around = (problem.path[:length] for length in range(len(problem.path), 0, -1))
            near = next((self.places[path] for path in around if path in self.places), Where(file=self.files[0]))
            where = problem.where or near
            known = where.file in self.files  # no file has what is `--set`, or code
            place = (self.files.index(where.file), where.line or 0) if known else (len(self.files), 0)
            found.setdefault(attrs.evolve(problem, where=where), place)
        return tuple(sorted(found, key=found.__getitem__))


def load(given: Given | Mapping[str, Any], overrides: Iterable[str] = ()) -> LoadedSpec:
    """Load a specification, or its problems; a mapping has the keys and values of a file, and may have a class in place of its name.

    SpecError: a text cannot be read or is not TOML, or TOML cannot write a value, or a class cannot be found again by its name.
    """
    path, places = given if isinstance(given, str) else IN_CODE, dict[Path, Where]()
    try:
        files = _read_files(given) if isinstance(given, str) else [_parsed(dump(given), IN_CODE)]
        written: dict[str, Any] = {}
        for file in reversed(files):
            written, places = _over(written, file.values), {**places, **file.places}
        written.pop("extends", None)
        written, problems = _assigned(written, places, overrides)
        places = {one: places[one] for one in _paths(written) if one in places}  # nothing that a layer above drops
        loaded = LoadedSpec(values=written, places=places, files=tuple(file.name for file in files), text=files[0].text)
        values = {"name": default_name(path), **written}
        for table, key in _FILES:
            if isinstance(inner := values.get(table), Mapping) and key in inner:
                values[table] = {**inner, key: loaded.located(inner[key], (table, key))}
        reader = Reader()
        spec: Spec | None = reader.read(values, Spec)
    except RecursionError:
        raise SpecError(Problem(message="nested too deeply", where=Where(file=path))) from None
    # Not a bound of a key: the two are seen together only here.
    if ("graph" in values) == ("architecture" in values):
        which = "both [graph] and [architecture] are" if "graph" in values else "neither [graph] nor [architecture] is"
        reader.problems.append(Problem(message=f"{which} given", path=("architecture",)))
    found = loaded.in_order([*reader.problems, *problems])
    return attrs.evolve(loaded, spec=None if found else spec, parts=reader.parts, problems=found)


def dump(spec: Spec | Mapping[str, Any]) -> str:
    """Return the specification as TOML, with every default, so that a change of a default does not change it; loading the text gives an equal one."""
    import tomli_w

    return tomli_w.dumps(toml_values(spec))


def default_name(path: str) -> str:
    """Return the name of a run whose specification has none: the file's name without its ending."""
    name = re.sub(r"[^\w.-]+", "-", FilePath(path).stem).lstrip(".")
    return {STDIN: "stdin", IN_CODE: "run"}.get(path, name) or "run"


@frozen
class _Layer:
    name: str
    text: str
    values: Mapping[str, Any]
    places: Mapping[Path, Where]


def _parsed(text: str, file: str) -> _Layer:
    try:
        values = tomllib.loads(text)
    except ValueError as error:
        at = re.search(r"at line (\d+)", str(error))
        where = Where(file=file, line=int(at[1]) if at else text.count("\n") + 1)
        raise SpecError(Problem(message=f"invalid TOML: {error}", where=where)) from None
    if file == IN_CODE:  # no text was written that has lines
        return _Layer(file, text, values, {one: Where(file=f"spec[{shown(dotted(one))}]") for one in _paths(values)})
    places = {path: Where(file=file, line=line) for path, line in find_lines(text).items()}
    return _Layer(file, text, values, places)


def _read_file(path: str) -> _Layer:
    name = "<stdin>" if path == STDIN else path or "''"
    try:
        if path == STDIN:
            content = sys.stdin.buffer.read() if sys.stdin else b""  # None is a closed one
        else:
            content = FilePath(os.path.expanduser(path)).read_bytes()  # noqa: PTH111  pathlib's own raises where there is no such home
        text = content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        message = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise SpecError(Problem(message=message, where=Where(file=name))) from None
    if not text.strip():  # one that is extended would silently say nothing
        raise SpecError(Problem(message="the file is empty", where=Where(file=name)))
    return _parsed(text, name)


def _read_files(path: str, above: tuple[str, ...] = ()) -> list[_Layer]:
    """Return a file and what it extends, from above to below; the files that extend it are `above`, without links."""
    file, chain = _read_file(path), (*above, os.path.realpath(path))
    given, below, problems = file.values.get("extends", []), list[_Layer](), list[Problem]()
    for base in given if isinstance(given, list) else [given]:
        inside, fault = os.path.join(os.path.dirname(path), os.path.expanduser(str(base))), ""  # noqa: PTH118, PTH111, PTH120
        if not isinstance(base, str) or not base or "\0" in base:
            fault = f"extends must be a file's name or a list of them (got {shown(base)})"
        elif os.path.realpath(inside) in chain:
            fault = f"extends {shown(base)}, which extends this file again"
        elif not os.path.isfile(inside):  # noqa: PTH113
            fault = f"extends {shown(base)}, but there is no such file"
        if fault:
            problems.append(Problem(message=fault, where=file.places["extends",]))
            continue
        try:
            below = [*_read_files(os.path.normpath(inside), chain), *below]
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(dict.fromkeys(problems))
    return [file, *below]


def _over(below: Mapping[str, Any], above: Mapping[str, Any], path: Path = ()) -> dict[str, Any]:
    values = _left(below, above, path)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(values.get(key), Mapping)
        values[key] = _over(values[key], value, (*path, key)) if both else value
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


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every value inside `value`, tables and arrays included."""
    if path:
        yield path
    items = value if isinstance(value, Mapping) else dict(enumerate(value)) if isinstance(value, list) else {}
    for key, item in items.items():
        yield from _paths(item, (*path, key))


def find_lines(text: str) -> dict[Path, int]:
    """Return the line of each key and table of a valid TOML text, counted from 1, which Python's parser does not tell.

    A header is a TOML text by itself, and so is a pair with all lines of its value. Each is parsed alone; what is inside it gets its first
    line. Paths include the indices of arrays: the third `[[graph.node]]` is ("graph", "node", 2).
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


@frozen(kw_only=True)
class Override:
    """One `--set`: a TOML key, in which an item of a list of tables goes by its `name` or its index, and a TOML value, or else text."""

    where: Where
    keys: tuple[str, ...]
    value: Any

    def refused(self, message: str, hint: str = "") -> SpecError:
        return SpecError(Problem(message=message, hint=hint, where=self.where))


def parse_override(text: str) -> Override:
    """Return the override that KEY=VALUE describes."""
    key, _, written = (part.strip() for part in text.partition("="))
    where = Where(file=f'changes["{key}"]' if isinstance(text, Change) else f"--set {text}")
    found = Override(where=where, keys=(), value=written)
    if not key or not written:
        raise found.refused("not KEY=VALUE", "for example --set run.epochs=3; empty text is '\"\"'")
    try:
        *_, keys = _paths(tomllib.loads(f"{key} = 0"))
    except ValueError:
        raise found.refused(f"{shown(key)} is not a TOML key") from None
    try:
        parsed = tomllib.loads(f"value = {written}")
    except (ValueError, RecursionError) as error:
        if written[0] in "\"'[{":
            raise found.refused(f"{written} is not a TOML value: {error}") from None
        parsed = {}
    value = parsed["value"] if list(parsed) == ["value"] else written
    return attrs.evolve(found, keys=tuple(map(str, keys)), value=value)


def _assigned(
    values: dict[str, Any], places: dict[Path, Where], texts: Iterable[str]
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the values with the overrides assigned, those of names first, and the problems of those that cannot be; `places` get theirs."""
    problems, overrides = list[Problem](), list[Override]()
    for text in texts:
        try:
            overrides.append(parse_override(text))
        except SpecError as error:
            problems += error.problems
    for override in sorted(overrides, key=lambda one: one.keys[-1] not in {"name", "block"}):
        there = set(_paths(values))
        try:
            values, path = _put(values, (), override)
        except SpecError as error:
            problems += error.problems
            continue
        # The tables that it implies are there because of it, and nowhere else.
        implied = {path[:length] for length in range(1, len(path))} - there
        places |= dict.fromkeys((*implied, *_paths(override.value, path)), override.where)
    return values, problems


def _put(container: Any, path: Path, override: Override) -> tuple[Any, Path]:
    """Return what is at a path with the override's value in it, and the path of that value: its keys, with indices for names."""
    if len(path) == len(override.keys):
        return override.value, path
    key: Any = override.keys[len(path)]
    if isinstance(container, list):
        names = [item.get("name") if isinstance(item, Mapping) else None for item in container]
        if key not in names and not (key.isdecimal() and int(key) < len(container)):
            hint = suggestion(key, [name for name in names if isinstance(name, str)])
            raise override.refused(f"{dotted(path)} has no item named {shown(key)}", hint)
        at = names.index(key) if key in names else int(key)
        inner, whole = _put(container[at], (*path, at), override)
        return [*container[:at], inner, *container[at + 1 :]], whole
    if not isinstance(container, Mapping):
        raise override.refused(f"{dotted(path)} is {shown(container)}, not a table")
    inner, whole = _put(container.get(key, {}), (*path, key), override)
    # An option of the architecture names no network, and so drops no graph.
    names_no_network = not path and override.keys[1:] not in ((), ("name",))
    return {**(container if names_no_network else _left(container, {key: inner}, path)), key: inner}, whole

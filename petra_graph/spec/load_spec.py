"""Specifications: files over all that they extend, with what `--set` says over them, or made in code; read, and written out.

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
from petra_graph.spec.in_code import Change, toml_values
from petra_graph.spec.model import Spec
from petra_graph.spec.strict_values import LONGEST_NAME, Reader

STDIN, IN_CODE = "-", "<spec>"
"""The standard input, as a file's name; and the name in messages of a specification made in code."""
Given = str | Spec
"""A specification as a user gives it: the name of a TOML file, "-" for the standard input, or one made in code."""
_FILES = (("partition", "profile"), ("init", "weights"))
"""The core's own keys that name files to read; their names are relative to the folder of the file that gives them."""
_DEFAULT_NAMES = {
    one.name: getattr(getattr(one.default, "factory", dict)(), "name", None) for one in attrs.fields(Spec)
}
"""The plugin or method of a table that names none."""


@frozen(kw_only=True, eq=False)
class Source:
    """Where values came from: a file, the standard input, code, or one `--set`."""

    file: str
    """The file's name in messages."""
    values: Mapping[str, Any] = field(factory=dict)
    text: str = ""
    set_paths: tuple[Path, ...] = ()
    """Of the values that `--set` gave."""

    @cached_property
    def places(self) -> Mapping[Path, Where]:
        """The place of every value; a text is searched for its lines when the first is asked for."""
        if self.file == IN_CODE:  # no text was written that has lines
            return {path: Where(file=f"spec[{shown('.'.join(map(str, path)))}]") for path in _paths(self.values)}
        lines = find_lines(self.text) if self.text else dict.fromkeys(self.set_paths)
        return {path: Where(file=self.file, line=line) for path, line in lines.items()}


@frozen(kw_only=True)
class LoadedSpec:
    """A specification, or its problems, with the values that it was read from and where each was written."""

    values: Mapping[str, Any]
    files: tuple[Source, ...]
    """The specification that was given, then what it extends, from above to below."""
    settings: tuple[Source, ...] = ()
    """Each `--set`, the later ones over the earlier."""
    spec: Spec | None = None
    """None where there are problems."""
    parts: Mapping[Path, Any] = field(factory=dict)
    """Its tables by path. Where there are problems, those that could be read, without their wrong keys: so that the same pass checks
    plugins, their options and the graph."""
    problems: tuple[Problem, ...] = ()
    """Located, and in reading order."""

    @property
    def folders(self) -> list[str]:
        """The absolute folders of the given file and of those that it extends; the current one for the standard input."""
        folders = [os.path.dirname(os.path.expanduser(one.file)) for one in self.files if one.file != IN_CODE]  # noqa: PTH111, PTH120
        return list(dict.fromkeys(map(os.path.abspath, folders)))  # no links resolved

    def _place(self, path: Path) -> tuple[Where | None, Path]:
        """Return where the value at a path was given, or else the nearest table around it, and the path of that; None: nowhere."""
        lengths = range(len(path), 0, -1)
        around = next((path[:length] for length in lengths if _is_there(path[:length], self.values)), ())
        above = (*reversed(self.settings), *self.files)
        return next((source.places[around] for source in above if around in source.places), None), around

    def located(self, name: Any, path: Path) -> Any:
        """Return the name of a file that the value at `path` is, relative to the working directory, where `--set` and code say it.

        One that is absolute, or begins with ~ or with a variable, is left as it is.
        """
        if not isinstance(name, str) or name.startswith(("~", "$", "/")):
            return name
        where, around = self._place(path)
        folder = os.path.dirname(where.file) if where is not None and where.line and around == path else ""  # noqa: PTH120
        return os.path.normpath(os.path.join(folder, name)) if folder else name  # noqa: PTH118  as the user wrote the folder

    def in_order(self, problems: Iterable[Problem]) -> tuple[Problem, ...]:
        """Return the problems with their places, without repetition and in reading order."""
        order = {source.file: index for index, source in reversed([*enumerate((*self.files, *self.settings))])}
        found: dict[Problem, tuple[int, int]] = {}
        for problem in problems:
            where = problem.where or self._place(problem.path)[0] or Where(file=self.files[0].file)
            found.setdefault(attrs.evolve(problem, where=where), (order.get(where.file, len(order)), where.line or 0))
        return tuple(sorted(found, key=found.__getitem__))


def load(given: Given | Mapping[str, Any], overrides: Iterable[str] = ()) -> LoadedSpec:
    """Load a specification, or its problems.

    Args:
        given: a file's name, or a specification made in code, also as a mapping with the keys and values of a TOML file, in which a
            class may be given in place of its name.
        overrides: `--set` assignments, KEY=VALUE.

    Raises:
        SpecError: a text cannot be read or is not TOML, or TOML cannot write a value, or a class cannot be found again by its name.
    """
    path = given if isinstance(given, str) else IN_CODE
    try:
        files = _read_files(given) if isinstance(given, str) else [_parsed(dump(given), IN_CODE)]
        written: Mapping[str, Any] = reduce(_over, (source.values for source in reversed(files)), {})
        written = {key: value for key, value in written.items() if key != "extends"}
        loaded, problems = apply_overrides(LoadedSpec(values=written, files=tuple(files)), overrides)
        values = {"name": default_name(path)} | dict(loaded.values)
        for table, key in _FILES:
            if isinstance(inner := values.get(table), Mapping) and key in inner:
                values[table] = {**inner, key: loaded.located(inner[key], (table, key))}
        reader = Reader()
        spec: Spec | None = reader.read(values, Spec, ())
    except RecursionError:
        raise SpecError(Problem(message="nested too deeply", where=Where(file=path))) from None
    # Not a bound of a key: the two are seen together only here.
    if ("graph" in values) == ("architecture" in values):
        which = "both [graph] and [architecture] are" if "graph" in values else "neither [graph] nor [architecture] is"
        hint = '[architecture] with name = "revnet", or one [[graph.node]] for each node'
        reader.problems.append(Problem(message=f"{which} given", hint=hint, path=("architecture",)))
    found = loaded.in_order([*problems, *reader.problems])
    return attrs.evolve(loaded, spec=None if found else spec, parts=reader.parts, problems=found)


def dump(spec: Spec | Mapping[str, Any]) -> str:
    """Return the specification as TOML; loading the text gives an equal specification.

    Every default is written out, so that a change of a default does not change it.
    """
    import tomli_w

    return tomli_w.dumps(toml_values(spec))


def default_name(path: str) -> str:
    """Return the name of a run whose specification has none: the file's name without its ending."""
    name = re.sub(r"[^\w.-]+", "-", FilePath(path).stem).lstrip(".").encode()[:LONGEST_NAME].decode(errors="ignore")
    return {STDIN: "stdin", IN_CODE: "run"}.get(path, name) or "run"


# --- files, one over the other ---


def _read_files(path: str, above: tuple[str, ...] = ()) -> list[Source]:
    """Return a file and what it extends, from above to below; the files that extend it are `above`, without links.

    Raises:
        SpecError: a file cannot be read, is not TOML, or extends itself; all problems.
    """
    source, chain = _read_file(path), (*above, os.path.realpath(path))
    given = source.values.get("extends", [])
    below, problems = list[Source](), list[Problem]()
    for index, name in enumerate(given if isinstance(given, list) else [given]):
        where = source.places["extends", index] if isinstance(given, list) else source.places["extends",]
        if not isinstance(name, str) or not name:
            message = f"extends must be a file's name or a list of them (got {shown(name)})"
            problems.append(Problem(message=message, where=where))
            continue
        base = os.path.normpath(os.path.join(os.path.dirname(path), os.path.expanduser(name)))  # noqa: PTH118, PTH111, PTH120
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


def _read_file(path: str) -> Source:
    file = "<stdin>" if path == STDIN else path or "''"
    try:
        # pathlib's own `expanduser` raises where there is no such home.
        content = sys.stdin.buffer.read() if path == STDIN else FilePath(os.path.expanduser(path)).read_bytes()  # noqa: PTH111
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = Where(file=file, line=error.object.count(b"\n", 0, error.start) + 1)
        raise SpecError(Problem(message="not UTF-8 text", where=where)) from None
    except (OSError, ValueError) as error:
        near, hint = FilePath(path), ""
        if close := get_close_matches(near.name, [one.name for one in near.parent.glob("*.toml")], n=1):
            hint = f"did you mean {str(near.with_name(close[0]))!r}?"
        message = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise SpecError(Problem(message=message, hint=hint, where=Where(file=file))) from None
    if not text.strip():  # one that is extended would silently say nothing
        raise SpecError(Problem(message="the file is empty", where=Where(file=file)))
    return _parsed(text, file)


def _parsed(text: str, file: str) -> Source:
    try:
        return Source(file=file, text=text, values=tomllib.loads(text))
    except ValueError as error:
        message, at = str(error), re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        line = int(at[1]) if at and at[1] else text.count("\n") + 1
        message = message[: at.start()] if at else message
        more = "; text needs quotes" if message == "Invalid value" else ""
        problem = Problem(message=f"invalid TOML: {message}{more}", where=Where(file=file, line=line))
        raise SpecError(problem) from None


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


# --- what is set ---


@frozen(kw_only=True)
class Override:
    """One `--set`: a TOML key, in which an item of a list of tables goes by its `name` or its index, and a TOML value, or else text."""

    file: str
    """What stands for a file's name in messages: the assignment, as it was given."""
    keys: tuple[str, ...]
    value: Any

    def refused(self, message: str, hint: str = "") -> SpecError:
        return SpecError(Problem(message=message, hint=hint, where=Where(file=self.file)))


def parse_override(text: str) -> Override:
    """Return the override that KEY=VALUE describes.

    Raises:
        SpecError: the key or the value is missing, or the value opens a TOML string, array or table and does not close it.
    """
    key, equals, written = (part.strip() for part in text.partition("="))
    found = Override(file=f'changes["{key}"]' if isinstance(text, Change) else f"--set {text}", keys=(), value=written)
    if not equals or not key or not written:
        raise found.refused("not KEY=VALUE", "for example --set run.epochs=3; empty text is '\"\"'")
    try:
        *_, keys = _paths(tomllib.loads(f"{key} = 0"))
    except ValueError:
        raise found.refused(f"{shown(key)} is not a TOML key") from None
    found = attrs.evolve(found, keys=tuple(map(str, keys)))
    try:
        parsed = tomllib.loads(f"value = {written}")
    except (ValueError, RecursionError) as error:
        if written[0] in "\"'[{":
            why = re.sub(r" \(at line \d+, column \d+\)$", "", str(error))
            raise found.refused(f"{written} is not a TOML value: {why}") from None
        return found
    return attrs.evolve(found, value=parsed["value"]) if list(parsed) == ["value"] else found


def apply_overrides(loaded: LoadedSpec, texts: Iterable[str]) -> tuple[LoadedSpec, list[Problem]]:
    """Return the values with the overrides assigned, those of names first, and the problems of those that cannot be."""
    problems, overrides = list[Problem](), list[Override]()
    for text in texts:
        try:
            overrides.append(parse_override(text))
        except SpecError as error:
            problems += error.problems
    for override in sorted(overrides, key=lambda one: one.keys[-1] not in {"name", "block"}):
        try:
            values, path = _put(loaded.values, (), override)
        except SpecError as error:
            problems += error.problems
            continue
        # The tables that it implies are there because of it, and nowhere else.
        around = [path[:n] for n in range(1, len(path)) if not _is_there(path[:n], loaded.values)]
        source = Source(file=override.file, set_paths=(*around, *_paths(override.value, path)))
        loaded = attrs.evolve(loaded, values=values, settings=(*loaded.settings, source))
    return loaded, problems


def _put(container: Any, path: Path, override: Override) -> tuple[Any, Path]:
    """Return what is at a path with the override's value in it, and the path of that value: its keys, with indices for names."""
    if len(path) == len(override.keys):
        return override.value, path
    key: Any = override.keys[len(path)]
    if isinstance(container, list):
        names = [item.get("name") if isinstance(item, Mapping) else None for item in container]
        if key not in names and not (key.isdecimal() and int(key) < len(container)):
            hint = suggestion(key, [name for name in names if isinstance(name, str)])
            raise override.refused(f"{'.'.join(map(str, path))} has no item named {shown(key)}", hint)
        at = names.index(key) if key in names else int(key)
        inner, whole = _put(container[at], (*path, at), override)
        return [*container[:at], inner, *container[at + 1 :]], whole
    if not isinstance(container, Mapping):
        raise override.refused(f"{'.'.join(map(str, path))} is {shown(container)}, not a table")
    inner, whole = _put(container.get(key, {}), (*path, key), override)
    # An option of the architecture names no network, and so drops no graph.
    names_no_network = not path and override.keys[1:] not in ((), ("name",))
    return {**(container if names_no_network else _left(container, {key: inner}, path)), key: inner}, whole

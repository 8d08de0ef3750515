"""Specifications as files: read, extended, overridden, structured, or written out.

`extends` names a file or several, relative to the file that contains it; later files override earlier ones, and the
file itself overrides all of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import PurePath
from typing import Any

from attrs import frozen

from petra_graph.errors import Problem, SpecError, shown
from petra_graph.spec.class_names import toml_values
from petra_graph.spec.keys import LONGEST_NAME
from petra_graph.spec.located_paths import with_located_paths
from petra_graph.spec.model import Spec
from petra_graph.spec.overrides import apply_overrides
from petra_graph.spec.source import IN_CODE, STDIN, parse_source, read_source
from petra_graph.spec.structure import Structured, structure
from petra_graph.spec.value_layers import Layers, merge, source_layers
from petra_graph.spec.value_types import as_mapping


@frozen(kw_only=True)
class LoadedSpec(Structured):
    """A specification or its problems, with the files that it came from."""

    layers: Layers

    @property
    def values(self) -> Mapping[str, Any]:
        """The merged values, as TOML gave them."""
        return self.layers.values

    @property
    def text(self) -> str:
        """The text of the given file, before the merge."""
        return self.layers.sources[0].text

    @property
    def folders(self) -> list[str]:
        """The absolute folders of the given file and of those that it extends; the current one for the standard input."""
        folders = [os.path.expanduser(source.folder) for source in self.layers.sources if not source.is_set]  # noqa: PTH111
        return list(dict.fromkeys(os.path.abspath(folder) for folder in folders))  # noqa: PTH100  no links resolved

    def located(self, problems: Iterable[Problem]) -> tuple[Problem, ...]:
        return self.layers.in_order(problems)


Given = str | Spec
"""A specification as a user gives it: the name of a TOML file, "-" for the standard input, or one made in code."""


def load(given: Given, overrides: Iterable[str] = ()) -> LoadedSpec:
    """Load a specification.

    Args:
        given: a file's name, or a specification made in code.
        overrides: `--set` assignments, KEY=VALUE.

    Returns:
        the specification, or its problems; those are located and in reading order.

    Raises:
        SpecError: a text cannot be read or is not TOML.
    """
    path = given if isinstance(given, str) else IN_CODE
    read = read_layers(path) if isinstance(given, str) else source_layers(parse_source(dump(given), IN_CODE))
    return _structured(*apply_overrides(read, overrides), default_name(path))


def load_values(values: Mapping[str, Any]) -> LoadedSpec:
    """Load a specification from a mapping with the keys and values of a TOML file, in which a class may be given in place of its name.

    Raises:
        SpecError: TOML cannot write a value, or a class cannot be found again by its name.
    """
    import tomli_w

    text = tomli_w.dumps(toml_values(values, ""))
    return _structured(source_layers(parse_source(text, IN_CODE)), (), "run")


def _structured(layers: Layers, problems: Iterable[Problem], name: str) -> LoadedSpec:
    structured = structure({"name": name} | dict(with_located_paths(layers)))
    problems = layers.in_order((*problems, *structured.problems))
    spec = None if problems else structured.spec
    return LoadedSpec(spec=spec, parts=structured.parts, problems=problems, layers=layers)


def dump(spec: Spec) -> str:
    """Return the specification as TOML; loading the text gives an equal specification.

    Every default is written out, so that a change of a default does not change it.
    """
    import tomli_w

    return tomli_w.dumps(as_mapping(spec))


def default_name(path: str) -> str:
    """Return the name of a run whose specification has none: the file's name without its ending."""
    name = re.sub(r"[^\w.-]+", "-", PurePath(path).stem).lstrip(".").encode()[:LONGEST_NAME]
    return "stdin" if path == STDIN else name.decode(errors="ignore") or "run"


def read_layers(path: str) -> Layers:
    """Return a specification merged over all files that it extends.

    Raises:
        SpecError: a file cannot be read, is not TOML, or extends itself.
    """
    return _extended(path, ())


def _extended(path: str, above: tuple[str, ...]) -> Layers:
    """Return a file over all files that it extends; `above` are those that extend it, without links."""
    source = read_source(path)
    chain = (*above, os.path.realpath(path))
    names = source.values.get("extends", [])
    bases: list[Layers] = []
    problems: list[Problem] = []
    for index, name in enumerate(names if isinstance(names, list) else [names]):
        where = source.where(("extends", index) if isinstance(names, list) else ("extends",))
        if not isinstance(name, str) or not name:
            message = f"extends must be a file's name or a list of them (got {shown(name)})"
            problems.append(Problem(message=message, where=where))
            continue
        folder = "" if path == STDIN else os.path.dirname(path)  # noqa: PTH120  keeps the path as the user wrote it
        base = os.path.normpath(os.path.join(folder, os.path.expanduser(name)))  # noqa: PTH118, PTH111  ditto
        if os.path.realpath(base) in chain:
            problems.append(Problem(message=f"extends {shown(name)}, which extends this file again", where=where))
        elif not os.path.isfile(base):  # noqa: PTH113  a string until here
            message = f"extends {shown(name)}, but there is no such file"
            hint = f"looked for {base!r}; the name is relative to the file that contains it"
            problems.append(Problem(message=message, hint=hint, where=where))
        else:
            try:
                bases.append(_extended(base, chain))
            except SpecError as error:
                problems += error.problems
    if problems:
        raise SpecError(source_layers(source).in_order(problems))
    return reduce(merge, [*bases, source_layers(source)])

"""Specifications: read with all that they extend and with what is `--set`, or made in code, and written out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from attrs import frozen

from petra_graph.errors import Path, Problem, SpecError, Where, shown
from petra_graph.spec.in_code import toml_values
from petra_graph.spec.keys import LONGEST_NAME
from petra_graph.spec.layers import IN_CODE, STDIN, TOO_DEEP, Layers, apply_overrides, read_layers, source_in_code
from petra_graph.spec.model import Spec
from petra_graph.spec.strict_values import Reader, as_mapping

_PATHS = (("partition", "profile"), ("init", "weights"))
"""The core's own keys that name files to read; their names are relative to the folder of the file that gives them."""
Given = str | Spec
"""A specification as a user gives it: the name of a TOML file, "-" for the standard input, or one made in code."""


@frozen(kw_only=True)
class LoadedSpec:
    """A specification or its problems, with the texts that it came from."""

    spec: Spec | None
    """None where there are problems."""
    parts: Mapping[Path, Any]
    """Its tables by path. Where there are problems, those that could be read, without their wrong keys: so that the same pass checks
    plugins, their options and the graph."""
    problems: tuple[Problem, ...]
    """Located, and in reading order."""
    layers: Layers

    @property
    def text(self) -> str:
        """The text of the given file, before the merge."""
        return self.layers.files[0].text

    @property
    def folders(self) -> list[str]:
        """The absolute folders of the given file and of those that it extends; the current one for the standard input."""
        folders = [os.path.expanduser(one.folder) for one in self.layers.files if one.folder is not None]  # noqa: PTH111
        return list(dict.fromkeys(os.path.abspath(folder) for folder in folders))  # noqa: PTH100  no links resolved

    def located(self, problems: Iterable[Problem]) -> tuple[Problem, ...]:
        return self.layers.in_order(problems)


def load(given: Given, overrides: Iterable[str] = ()) -> LoadedSpec:
    """Load a specification, or its problems.

    Args:
        given: a file's name, or a specification made in code.
        overrides: `--set` assignments, KEY=VALUE.

    Raises:
        SpecError: a text cannot be read or is not TOML.
    """
    path = given if isinstance(given, str) else IN_CODE
    try:
        layers = read_layers(given) if isinstance(given, str) else Layers.of(source_in_code(as_mapping(given)))
        return _read(*apply_overrides(layers, overrides), default_name(path))
    except RecursionError:
        raise SpecError(Problem(message=TOO_DEEP, where=Where(file=path))) from None


def load_values(values: Mapping[str, Any]) -> LoadedSpec:
    """Load a specification from a mapping with the keys and values of a TOML file, in which a class may be given in place of its name.

    Raises:
        SpecError: TOML cannot write a value, or a class cannot be found again by its name.
    """
    return _read(Layers.of(source_in_code(toml_values(values, ""))), [], "run")


def _read(layers: Layers, problems: list[Problem], name: str) -> LoadedSpec:
    values = {"name": name} | dict(layers.values)
    for table, key in _PATHS:
        if isinstance(inner := values.get(table), Mapping) and key in inner:
            values[table] = {**inner, key: layers.located(inner[key], (table, key))}
    graph = values.get("graph")
    lists: dict[Path, tuple[str, Any]] = {(key,): (key, items) for key, items in values.items()}
    lists["graph", "node"] = ("node", graph.get("node") if isinstance(graph, Mapping) else None)
    names: dict[Path, str] = {
        (*path, index): _name_of(noun, item, index)
        for path, (noun, items) in lists.items()
        for index, item in enumerate(items if isinstance(items, list) else ())
    }
    reader = Reader(names=names)
    spec: Spec | None = reader.read(values, Spec, ())
    if ("graph" in values) == ("architecture" in values):
        given = "both [graph] and [architecture] are" if graph is not None else "neither [graph] nor [architecture] is"
        hint = '[architecture] with name = "revnet", or one [[graph.node]] for each node'
        reader.problems.append(Problem(message=f"{given} given", hint=hint, path=("architecture",)))
    found = layers.in_order([*problems, *reader.problems])
    return LoadedSpec(spec=None if found else spec, parts=reader.parts, problems=found, layers=layers)


def _name_of(noun: str, item: Any, index: int) -> str:
    """Return the name of a node or plugin in messages: its own name where it has one, else its index."""
    name = item.get("name") if isinstance(item, Mapping) else None
    return f"{noun} {shown(name)}" if isinstance(name, str) and name else f"the {noun} at index {index}"


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

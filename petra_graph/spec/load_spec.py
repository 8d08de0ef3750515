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
from petra_graph.spec.layers import IN_CODE, STDIN, Layers, apply_overrides, parse_source, read_layers
from petra_graph.spec.model import Spec
from petra_graph.spec.strict_values import LONGEST_NAME, Reader

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
        layers = read_layers(given) if isinstance(given, str) else Layers.of(parse_source(dump(given), IN_CODE))
        layers, problems = apply_overrides(layers, overrides)
        values = {"name": default_name(path)} | dict(layers.values)
        for table, key in _PATHS:
            if isinstance(inner := values.get(table), Mapping) and key in inner:
                values[table] = {**inner, key: layers.located(inner[key], (table, key))}
        reader = Reader(names=_names(values))
        spec: Spec | None = reader.read(values, Spec, ())
    except RecursionError:
        raise SpecError(Problem(message="nested too deeply", where=Where(file=path))) from None
    if ("graph" in values) == ("architecture" in values):
        given_tables = (
            "both [graph] and [architecture] are" if "graph" in values else "neither [graph] nor [architecture] is"
        )
        hint = '[architecture] with name = "revnet", or one [[graph.node]] for each node'
        reader.problems.append(Problem(message=f"{given_tables} given", hint=hint, path=("architecture",)))
    found = layers.in_order([*problems, *reader.problems])
    return LoadedSpec(spec=None if found else spec, parts=reader.parts, problems=found, layers=layers)


def _names(values: Mapping[str, Any]) -> dict[Path, str]:
    """Return the names in messages of tables in lists: their own where they have one, else their index."""
    graph, found = values.get("graph"), dict[Path, str]()
    lists: dict[Path, Any] = {(key,): items for key, items in values.items()}
    lists["graph", "node"] = graph.get("node") if isinstance(graph, Mapping) else None
    for path, items in lists.items():
        for index, item in enumerate(items if isinstance(items, list) else ()):
            name = item.get("name") if isinstance(item, Mapping) else None
            own = isinstance(name, str) and name
            found[*path, index] = f"{path[-1]} {shown(name)}" if own else f"the {path[-1]} at index {index}"
    return found


def dump(spec: Spec | Mapping[str, Any]) -> str:
    """Return the specification as TOML; loading the text gives an equal specification.

    Every default is written out, so that a change of a default does not change it.
    """
    import tomli_w

    return tomli_w.dumps(toml_values(spec))


def default_name(path: str) -> str:
    """Return the name of a run whose specification has none: the file's name without its ending."""
    name = re.sub(r"[^\w.-]+", "-", PurePath(path).stem).lstrip(".").encode()[:LONGEST_NAME].decode(errors="ignore")
    return {STDIN: "stdin", IN_CODE: "run"}.get(path, name) or "run"

"""Names of files and folders in a specification: relative to the file that says them.

What `--set` and a specification made in code say is relative to the working directory. A name that begins with ~ or with a
variable is left as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import attrs

from petra_graph.errors import Path
from petra_graph.spec.keys import IS_PATH, keys_with
from petra_graph.spec.model import Spec
from petra_graph.spec.value_layers import Layers
from petra_graph.spec.value_types import members


def with_located_paths(layers: Layers) -> Mapping[str, Any]:
    """Return the values, those of the core's keys that name files relative to the working directory."""
    values = dict(layers.values)
    for table, key in _KEYS:
        inner = values.get(table)
        if isinstance(inner, Mapping) and isinstance(inner.get(key), str):
            values[table] = {**inner, key: located(inner[key], (table, key), layers)}
    return values


def located_options(options: type, values: Mapping[str, Any], path: Path, layers: Layers) -> Mapping[str, Any]:
    """Return a plugin's `options` table at `path` in the same way; its class says which of its keys name files."""
    return {
        key: located(value, (*path, key), layers) if key in path_keys(options) and isinstance(value, str) else value
        for key, value in values.items()
    }


def located(name: str, path: Path, layers: Layers) -> str:
    """Return a name that the specification gives at `path`, relative to the working directory."""
    source = layers.origins.get(path)
    folder = "" if source is None else source.folder
    if not folder or name.startswith(("~", "$")):
        return name
    return os.path.normpath(os.path.join(folder, name))  # noqa: PTH118  keeps the folder as the user wrote it


def absolute(name: str | None) -> str | None:
    """Return a name as one that means the same in a file of any folder."""
    if name is None or name.startswith(("~", "$")):
        return name
    return os.path.abspath(name)  # noqa: PTH100  no links resolved


path_keys = partial(keys_with, IS_PATH)


def _model_keys() -> Iterator[tuple[str, str]]:
    attrs.resolve_types(Spec)
    for table in attrs.fields(Spec):
        for kind in members(table.type):
            if attrs.has(kind):
                yield from ((table.name, key) for key in path_keys(kind))


_KEYS = tuple(_model_keys())
"""The core's own keys that name files, each with its table."""

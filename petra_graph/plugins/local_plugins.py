"""Plugins without a package: `name = "my_module:Name"` names a class or function in a module next to a specification."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Sequence
from functools import reduce
from importlib.machinery import PathFinder
from typing import Any

from attrs import evolve

from petra_graph.errors import PluginError, Problem, SpecError, shown, suggestion
from petra_graph.plugins.author_code import importing
from petra_graph.plugins.contract import Plugin, PluginKind, plugin_of


def is_local(name: str) -> bool:
    """Return whether a name has the form "module:attribute"."""
    return re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", name) is not None


def look_in(folders: Iterable[str]) -> None:
    """Add folders to Python's path, at its end: so a file there cannot take the place of an installed module."""
    sys.path.extend(folder for folder in folders if folder not in sys.path)


def code_problem(key: str, name: str, folders: Sequence[str]) -> Problem | None:
    """Return what is wrong with the "module:attribute" that an option names; its module can then be imported, where nothing is.

    Args:
        key: the option's.
        name: its value.
        folders: as for `missing_module`.
    """
    if not is_local(name):
        hint = 'as in "my_file:make_it", where my_file.py lies beside the specification'
        return Problem(message=f'{key} must be "module:attribute" (got {shown(name)})', hint=hint)
    look_in(folders)
    missing = missing_module(name, folders)
    top = name.partition(":")[0].partition(".")[0]
    return None if missing is None else evolve(missing, message=f"there is no {name}: {top!r} cannot be imported")


def missing_module(name: str, folders: Sequence[str], noun: str = "block", nouns: str = "blocks") -> Problem | None:
    """Return the problem of a "module:attribute" whose top package cannot be found; this imports nothing.

    Args:
        folders: those of a registry; their modules come after those of Python's path.
        noun: of its kind, as in "block".
        nouns: several of them.
    """
    top = name.partition(":")[0].partition(".")[0]
    if top in sys.modules or PathFinder.find_spec(top, [*sys.path, *folders]) is not None:
        return None
    return Problem(
        message=f"{noun} {shown(name)} has no module: {top!r} is neither importable nor a distribution with {nouns}",
        hint=f"modules are looked for on Python's path and in {' and '.join(folders)}",
    )


def resolve_local(kind: PluginKind, name: str, folders: Sequence[str]) -> Plugin:
    """Import "module:attribute" and return the plugin that it is.

    Args:
        kind: of the plugin.
        name: "module:attribute".
        folders: where the module may lie, besides Python's path.

    Raises:
        SpecError: the module is not found.
        PluginError: importing it fails, or what it names is not a plugin of this kind.
    """
    missing = missing_module(name, folders, kind.noun, kind.nouns)
    if missing is not None:
        raise SpecError(missing)
    look_in(folders)
    plugin = f"{kind.noun} {shown(name)}"
    module, _, attribute = name.partition(":")
    with importing(f"{plugin} cannot be loaded"):
        found: Any = importlib.import_module(module)
    value: Any = reduce(lambda value, part: getattr(value, part, None), attribute.split("."), found)
    if value is None:
        own = [key for key, one in vars(found).items() if getattr(one, "__module__", "") == module and callable(one)]
        raise PluginError(f"{plugin}: the module {module!r} has no {attribute!r}", suggestion(attribute, own))
    return plugin_of(kind, name, value)

"""Code without a package: `"my_module:Name"` names a class or function in a module that Python finds, or in a file beside a specification.

Decision: a file beside the specification comes first, also where an installed module has its name (`test.py`), so that every way to start a run
finds the same file. Where Python would find another one, or has imported another folder's, the file is loaded by its path under a name of its
own, with the modules beside it that it imports: two folders' `net.py` never mix.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from petra_graph.errors import PluginError, Problem, SpecError, shown, suggestion
from petra_graph.plugins.author_code import importing
from petra_graph.plugins.contract import Plugin, PluginKind, plugin_of

_PRIVATE = "_petra_graph_beside_"
_added: list[str] = []
"""Folders that are on Python's path because specifications lie there."""


def is_local(name: str) -> bool:
    """Return whether a name has the form "module:attribute"."""
    return re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", name) is not None


def import_module(module: str, folders: Iterable[str]) -> ModuleType:
    """Import a module that lies in one of the folders, or that Python finds; raise what the import raises."""
    for folder in folders:
        if folder not in sys.path:  # at its end: for what a module imports later
            sys.path.append(folder)
            _added.append(folder)
    file = _file_beside(module, folders)
    top = module.partition(".")[0]
    known = sys.modules.get(top)
    found = getattr(known, "__file__", None) if known is not None else _origin(top)
    if file is None or (found and Path(found).resolve().is_relative_to(_root(file, module))):
        return importlib.import_module(module)
    with _package_of(str(_root(file, module))) as package:
        return importlib.import_module(f"{package}.{module}")


def _file_beside(module: str, folders: Iterable[str]) -> Path | None:
    """Return the file of a module in the first of the folders that has it."""
    parts = module.split(".")
    places = (Path(folder, *parts) for folder in folders)
    files = (file for place in places for file in (place.with_suffix(".py"), place / "__init__.py"))
    return next((file.resolve() for file in files if file.is_file()), None)


def _root(file: Path, module: str) -> Path:
    """Return the folder that has the first part of a module's name."""
    return file.parents[module.count(".") + (file.name == "__init__.py")]


def _origin(top: str) -> str | None:
    spec = PathFinder.find_spec(top)
    return None if spec is None else spec.origin


@contextmanager
def _package_of(folder: str) -> Iterator[str]:
    """Make a folder a package of its own name; plain imports of its modules find these, and move into it afterwards."""
    package = _PRIVATE + hashlib.sha256(folder.encode()).hexdigest()[:12]
    importlib.invalidate_caches()  # a file may be younger than the last import
    sys.modules.setdefault(package, ModuleType(package)).__path__ = [folder]
    own = {file.stem for file in Path(folder).glob("*.py")} | {
        file.parent.name for file in Path(folder).glob("*/__init__.py")
    }
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in own}
    before = set(sys.modules)
    for name in [name for name in before if name.startswith(f"{package}.")]:
        sys.modules[name.removeprefix(f"{package}.")] = sys.modules[name]
    path = sys.path.copy()
    sys.path[:] = [*(one for one in path if one not in _added), folder]
    try:
        yield package
    finally:
        sys.path[:] = path
        for name in [name for name in sys.modules if name not in before and not name.startswith(package)]:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(folder + os.sep):
                sys.modules[f"{package}.{name}"] = sys.modules.pop(name)
        sys.modules.update(hidden)


def find_code(location: str, folders: Sequence[str]) -> Any:
    """Return what "module:attribute" names; raise what the import raises, or AttributeError."""
    module, _, attribute = location.partition(":")
    found: Any = import_module(module, folders)
    return reduce(getattr, attribute.split("."), found)


def code_problem(key: str, name: str, folders: Sequence[str]) -> Problem | None:
    """Return what is wrong with the "module:attribute" that an option names, as far as that is known without importing it."""
    if not is_local(name):
        hint = 'as in "my_file:make_it", where my_file.py lies beside the specification'
        return Problem(message=f'{key} must be "module:attribute" (got {shown(name)})', hint=hint)
    top = name.partition(":")[0].partition(".")[0]
    missing = missing_module(name, folders)
    if missing is None:
        return None
    return Problem(message=f"there is no {name}: {top!r} cannot be imported", hint=missing.hint)


def missing_module(name: str, folders: Sequence[str], noun: str = "block", nouns: str = "blocks") -> Problem | None:
    """Return the problem of a "module:attribute" whose top package cannot be found; this imports nothing.

    Args:
        name: "module:attribute".
        folders: those of a registry.
        noun: of its kind, as in "block".
        nouns: several of them.
    """
    module = name.partition(":")[0]
    top = module.partition(".")[0]
    if (
        top in sys.modules
        or _file_beside(module, folders)
        or PathFinder.find_spec(top, [*sys.path, *folders]) is not None
    ):
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
    plugin = f"{kind.noun} {shown(name)}"
    module, _, attribute = name.partition(":")
    with importing(f"{plugin} cannot be loaded"):
        found: Any = import_module(module, folders)
    value: Any = reduce(lambda value, part: getattr(value, part, None), attribute.split("."), found)
    if value is None:
        own = [key for key, one in vars(found).items() if getattr(one, "__module__", "") == found.__name__]
        raise PluginError(f"{plugin}: the module {module!r} has no {attribute!r}", suggestion(attribute, own))
    return plugin_of(kind, name, value, folders=folders)

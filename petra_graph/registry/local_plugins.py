"""Plugins without a package: `name = "my_module:attribute"` names a declaration, or the code itself, in a module next to a specification.

Decision: a declaration that follows from code is read by importing the code's module, and usually torch. `validate` therefore names
local blocks and does not check them. Local plugins of other kinds are imported: a network cannot be checked without its architecture
and the facts of its data.
"""

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
from petra_graph.kinds.author_code import author_code, importing, remedy
from petra_graph.kinds.declaration import Declaration, api_fault, api_remedy, stated_by
from petra_graph.kinds.plugin_kind import PluginKind

_MEND = "mend the declaration"


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


def resolve_local(kind: PluginKind, name: str, folders: Sequence[str]) -> Declaration:
    """Import "module:attribute" and return the declaration that it is, or that follows from the code.

    Args:
        name: "module:attribute".
        folders: where the module may lie, besides Python's path.

    Raises:
        SpecError: the module is not found.
        PluginError: importing it fails, or what it names is not a plugin of this kind.
    """
    plugin = f"{kind.noun} {shown(name)}"
    value = _attribute(kind, name, folders)
    return read_declaration(kind, value, name, names=(plugin, plugin))


def read_declaration(
    kind: PluginKind, value: Any, location: str, *, names: tuple[str, str], distribution: str = ""
) -> Declaration:
    """Return the declaration that a value is or has, or that follows from code.

    Args:
        value: what the location names, "module:attribute".
        names: the plugin in messages, and the subject of its faults.
        distribution: that has it; "" for a local plugin.

    Raises:
        PluginError: it is not a plugin of this kind.
    """
    plugin, subject = names
    with author_code(f"{plugin} cannot be read"):
        declaration = kind.declared_by(value, location)
        other = api_fault(declaration)
        fault = "" if other else kind.fault_of(declaration)
    if other:
        upgrade = f"upgrade {distribution}" if distribution else _MEND
        raise PluginError(f"{plugin} {other}", api_remedy(declaration, upgrade))
    if fault:
        mend = remedy(distribution) if distribution else _MEND
        raise PluginError(f"{subject} {fault}", mend if isinstance(stated_by(value), Declaration) else kind.form.hint)
    return declaration  # type: ignore[no-any-return]  # without a fault, it is one


def possible_kinds(code: Any, kinds: Iterable[PluginKind]) -> list[PluginKind]:
    """Return the kinds that code without a declaration may be of: one, where its base class, parameters or methods say which."""
    fitting = [kind for kind in kinds if kind.form.fits(code)]
    return [kind for kind in fitting if kind.form.likely(code)] or fitting


def _attribute(kind: PluginKind, name: str, folders: Sequence[str]) -> Any:
    """Import "module:attribute" and return what it names."""
    missing = missing_module(name, folders, kind.noun, kind.nouns)
    if missing is not None:
        raise SpecError(missing)
    look_in(folders)
    module, _, attribute = name.partition(":")
    with importing(f"{kind.noun} {shown(name)} cannot be loaded"):
        found: Any = importlib.import_module(module)
    form = kind.form
    value: Any = reduce(lambda value, part: getattr(value, part, None), attribute.split("."), found)
    if value is not None:
        return value
    fitting = {key: one for key, one in vars(found).items() if isinstance(one, kind.declaration) or form.fits(one)}
    own = [key for key, one in fitting.items() if getattr(one, "__module__", module) == module]
    where = getattr(found, "__file__", None) or module
    hint = suggestion(attribute, own or fitting) if fitting else f"{where} has no {form.having}"
    if module == "__main__":
        hint += "; it was defined in a notebook or script: put it into a module to use it elsewhere"
    thing = "class" if form.having.startswith("class") else "attribute"
    raise PluginError(f"{kind.noun} {shown(name)}: the module {module!r} has no {thing} {attribute!r}", hint)

"""Declarations, checked when a plugin is resolved, so that the message blames the plugin and not its user.

Decision: no exception of a plugin's code ends the program with a traceback. Each becomes one problem that names the
plugin, its distribution, the exception and the line.

Decision: a local block, as in `block = "my_module:MyBlock"`, needs no package and no entry point. It has no declaration
apart from its class, so reading it imports the module, and usually torch. `validate` therefore names these blocks and
does not check them.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import reduce
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, TypeVar

from petra_graph.errors import PetraGraphError, PluginError, Problem, SpecError, shown, suggestion
from petra_graph.registry.contracts import BlockDeclaration, DataFacts, DataSetDeclaration, Declaration, NoOptions
from petra_graph.registry.declaration_faults import api_fault, find_fault
from petra_graph.registry.discovery import Entry

T = TypeVar("T")
_HERE = Path(__file__).parent


def checked_declaration(entry: Entry, noun: str, contract: type[Declaration]) -> Declaration:
    """Return the declaration that an entry point names, checked against a contract.

    Raises:
        PluginError: the declaration cannot be loaded, or breaks the contract.
    """
    plugin = f"{noun} {shown(entry.name)} of {entry.distribution}"
    declaration = run_plugin_code(entry.load, f"{plugin} cannot be loaded from {entry.target!r}")
    other = run_plugin_code(lambda: api_fault(declaration), f"{plugin} cannot be read")
    if other:
        hint = f"install a release of {entry.distribution} for this petra-graph, or the petra-graph that it was written for"
        raise PluginError(f"{plugin} {other}", hint)
    fault = run_plugin_code(lambda: find_fault(declaration, contract), f"{plugin} cannot be read")
    if fault:
        raise PluginError(f"{plugin} is broken: {entry.target!r} {fault}", "report it to its author")
    return declaration  # type: ignore[no-any-return]  # find_fault has checked its type


def run_plugin_code(action: Callable[[], T], failure: str) -> T:
    """Return the result of a plugin's code.

    Args:
        action: the plugin's code.
        failure: the beginning of the message if it fails; the exception and its position follow.

    Raises:
        PluginError: the code raised anything but an interruption by the keyboard or one of our own errors.
    """
    try:
        return action()
    except (KeyboardInterrupt, PetraGraphError):
        raise
    except BaseException as error:
        raise blamed(failure, error) from error


def blamed(failure: str, error: BaseException) -> PluginError:
    """Return what a plugin's code raised, as an error that names the plugin, as `failure` does, and the line."""
    exception = traceback.format_exception_only(error)[-1].strip()
    at = _raised_at(error)
    hint = f"raised at {at}" if at else "report it to its author"
    return PluginError(Problem(message=f"{failure}: {exception}", hint=hint))


def run_in_training(action: Callable[[], T], failure: str) -> T:
    """Return the result of a plugin's code, as `run_plugin_code` does; where memory runs out, that is no plugin's fault.

    Raises:
        PluginError: the code raised an exception.
    """
    try:
        return action()
    except PetraGraphError:
        raise
    except Exception as error:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's own, on a GPU
            raise
        raise blamed(failure, error) from error


def resolve_location(location: str, failure: str) -> Any:
    """Return what "module:attribute" names, which a declaration has given.

    Raises:
        PluginError: it cannot be imported; the message begins with `failure`.
    """
    return run_plugin_code(lambda: pkgutil.resolve_name(location), failure)


def _raised_at(error: BaseException) -> str:
    """Return file:line of the code that raised the error, "" where only the machinery that calls it did."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    machinery = ("<frozen", pkgutil.__file__)
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(machinery)]
    return f"{lines[-1].filename}:{lines[-1].lineno}" if lines and Path(lines[-1].filename).parent != _HERE else ""


def is_local(name: str) -> bool:
    """Return whether a name has the form "module:Class"."""
    return re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", name) is not None


def missing_module(name: str, folders: Sequence[str], noun: str = "block") -> Problem | None:
    """Return the problem of a "module:Class" whose top package cannot be found; this imports nothing.

    Args:
        name: of the block or data set.
        folders: those of a registry; their modules come after those of Python's path.
        noun: "block" or "data set".
    """
    top = name.partition(":")[0].partition(".")[0]
    if top in sys.modules or PathFinder.find_spec(top, [*sys.path, *folders]) is not None:
        return None
    return Problem(
        message=f"{noun} {shown(name)} has no module: {top!r} is neither importable nor a distribution with {noun}s",
        hint=f"modules are looked for on Python's path and in {' and '.join(folders)}",
    )


def resolve_local_block(name: str, folders: Sequence[str]) -> BlockDeclaration:
    """Import "module:Class" and return the declaration that follows from the class's own attributes.

    The folders join Python's path, at its end: no file there can take the place of an installed module.

    Raises:
        SpecError: there is no such module.
        PluginError: importing it fails, or the class is no block.
    """
    cls = _local_class(name, folders, "block", "a `kind`, as blocks are", _is_block)
    fault = "is not a class with a `kind`, as blocks are"
    if _is_block(cls):
        declaration = BlockDeclaration(
            summary=_summary(cls),
            options=getattr(cls, "Options", NoOptions),
            build=name,
            kind=cls.kind,
            streams=getattr(cls, "streams", None),
        )
        fault = find_fault(declaration, BlockDeclaration)
        if not fault:
            return declaration
    hint = "subclass one of petra_graph.blocks, and give it an attrs class `Options`"
    raise PluginError(f"block {shown(name)} {fault}", hint)


def resolve_local_data_set(name: str, folders: Sequence[str]) -> DataSetDeclaration:
    """Import "module:Class" and return the declaration of a data set that is built as `cls(options)`.

    Raises:
        SpecError: there is no such module.
        PluginError: importing it fails, or the class is no data set.
    """
    cls = _local_class(name, folders, "data set", "`facts`, as data sets are", _is_data_set)
    fault = "is not a class with `facts`, a DataFacts of its samples"
    if _is_data_set(cls):
        facts: DataFacts = cls.facts
        declaration = DataSetDeclaration(
            summary=_summary(cls),
            options=getattr(cls, "Options", NoOptions),
            build=name,
            facts=lambda _: facts,
            read=f"{name}.read" if hasattr(cls, "read") else None,
        )
        fault = find_fault(declaration, DataSetDeclaration)
        if not fault:
            return declaration
    hint = "give it `facts = DataFacts(...)`, and the attributes `train` and `test` where it is built"
    raise PluginError(f"data set {shown(name)} {fault}", hint)


def _local_class(name: str, folders: Sequence[str], noun: str, having: str, is_one: Callable[[object], bool]) -> Any:
    """Import "module:Class" and return what it names."""
    missing = missing_module(name, folders, noun)
    if missing is not None:
        raise SpecError(missing)
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    module, _, attribute = name.partition(":")
    found: Any = run_plugin_code(lambda: importlib.import_module(module), f"{noun} {shown(name)} cannot be loaded")
    cls: Any = reduce(lambda value, part: getattr(value, part, None), attribute.split("."), found)
    if cls is None:
        those = [key for key, value in vars(found).items() if is_one(value) and value.__module__ == module]
        where = getattr(found, "__file__", None) or module
        hint = suggestion(attribute, those) if those else f"{where} has no class with {having}"
        if module == "__main__":
            hint += "; it was defined in a notebook or script: put it into a module to use it elsewhere"
        raise PluginError(f"{noun} {shown(name)}: the module {module!r} has no class {attribute!r}", hint)
    return cls


def _summary(cls: type) -> str:
    return ((cls.__doc__ or "").strip().partition("\n")[0]) or cls.__name__


def _is_block(value: object) -> bool:
    return isinstance(value, type) and hasattr(value, "kind")


def _is_data_set(value: object) -> bool:
    return isinstance(value, type) and isinstance(getattr(value, "facts", None), DataFacts)

"""Declarations, checked when a plugin is resolved, so that the message blames the plugin and not its user.

Decision: no exception of a plugin's code ends the program with a traceback. Each becomes one problem that names the
plugin, its distribution, the exception and the line.
"""

from __future__ import annotations

import pkgutil
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from attrs import evolve

from petra_graph.errors import PetraGraphError, PluginError, Problem, shown
from petra_graph.registry.author_code import raised_at
from petra_graph.registry.contracts import Declaration
from petra_graph.registry.declaration_faults import api_fault, find_fault
from petra_graph.registry.discovery import Entry

T = TypeVar("T")


def checked_declaration(entry: Entry, noun: str, contract: type[Declaration]) -> Declaration:
    """Return the declaration that an entry point names, checked against a contract.

    Raises:
        PluginError: the declaration cannot be loaded, or breaks the contract.
    """
    plugin = f"{noun} {shown(entry.name)} of {entry.distribution}"
    try:
        declaration = run_plugin_code(entry.load, f"{plugin} cannot be loaded from {entry.target!r}")
    except PluginError as error:
        if not _is_gone(entry, error.__cause__):
            raise
        again = f"; install {entry.distribution} again if its entry points have changed"
        raise PluginError(evolve(one, hint=one.hint + again) for one in error.problems) from error.__cause__
    other = run_plugin_code(lambda: api_fault(declaration), f"{plugin} cannot be read")
    if other:
        hint = f"install a release of {entry.distribution} for this petra-graph, or the petra-graph that it was written for"
        raise PluginError(f"{plugin} {other}", hint)
    fault = run_plugin_code(lambda: find_fault(declaration, contract), f"{plugin} cannot be read")
    if fault:
        raise PluginError(f"{plugin} is broken: {entry.target!r} {fault}", "report it to its author")
    return declaration  # type: ignore[no-any-return]  # find_fault has checked its type


def _is_gone(entry: Entry, cause: BaseException | None) -> bool:
    """Return whether an import failed because there is no such module or attribute, as after a renaming."""
    module, _, attribute = entry.target.partition(":")
    if isinstance(cause, ModuleNotFoundError):
        return cause.name is not None and f"{module}.".startswith(f"{cause.name}.")
    return isinstance(cause, AttributeError) and cause.name == attribute.partition(".")[0]


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
    at = raised_at(error)
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

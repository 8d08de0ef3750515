"""A plugin's contract, checked when the plugin is resolved, so that the message blames the plugin and not its user.

Decision: no exception of a plugin's code ends the program with a traceback. Each becomes one problem that names the
plugin, its distribution, the exception and the line.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, get_args

import attrs

from petra_graph.errors import PetraGraphError, PluginError, Problem, shown
from petra_graph.registry import contracts
from petra_graph.registry.contracts import Declaration
from petra_graph.registry.discovery import Entry
from petra_graph.spec.model import Kind
from petra_graph.spec.strict import check_readable

T = TypeVar("T")


def checked_declaration(entry: Entry, noun: str, contract: type[Declaration]) -> Declaration:
    """Return the declaration that an entry point names, checked against a contract.

    Raises:
        PluginError: the declaration cannot be loaded, or breaks the contract.
    """
    plugin = f"{noun} {shown(entry.name)} of {entry.distribution}"
    declaration = guarded(entry.load, f"{plugin} cannot be loaded from {entry.target!r}")
    fault = find_fault(declaration, contract)
    if fault:
        raise PluginError(
            Problem(message=f"{plugin} is broken: {entry.target!r} {fault}", hint="report it to its author")
        )
    return declaration  # type: ignore[no-any-return]  # find_fault has checked its type


def guarded(action: Callable[[], T], failure: str) -> T:
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
        exception = traceback.format_exception_only(error)[-1].strip()
        raise PluginError(Problem(message=f"{failure}: {exception}", hint=f"raised at {_raised_at(error)}")) from error


def _raised_at(error: BaseException) -> str:
    """Return file:line of the code that raised the error; the import machinery does not count."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown position"


def find_fault(declaration: object, expected: type[Declaration]) -> str:
    """Return the first fault of a declaration, as the end of a sentence; "" where the declaration is right."""
    if not isinstance(declaration, expected):
        return f"is {type(declaration).__name__}, not {expected.__name__}"
    return next(_faults(declaration), "")


def _faults(declaration: Any) -> Iterator[str]:
    if not isinstance(declaration.build, str) or not re.fullmatch(r"[\w.]+:[\w.]+", declaration.build):
        yield f'has build = {declaration.build!r}, not "module:attribute"'
    if not isinstance(declaration.summary, str) or not declaration.summary.strip():
        yield "has no summary"
    yield from _option_faults(declaration.options)
    if isinstance(declaration, contracts.BlockDeclaration) and declaration.kind not in get_args(Kind):
        yield f"has kind = {declaration.kind!r}, not one of {', '.join(get_args(Kind))}"
    if isinstance(declaration, contracts.OptimizerDeclaration) and "lr" not in attrs.fields_dict(declaration.options):
        yield f"has options without `lr` ({declaration.options.__name__})"
    if isinstance(declaration, contracts.DataSetDeclaration) and not callable(getattr(declaration, "facts", None)):
        yield "has `facts` that cannot be called"


def _option_faults(options: object) -> Iterator[str]:
    if not isinstance(options, type) or not attrs.has(options):
        yield f"has options = {options!r}, which is not an attrs class"
        return
    try:
        check_readable(options)
    except Exception as error:  # noqa: BLE001  annotations are code of the plugin
        yield f"has options that cannot be read from TOML: {error}"

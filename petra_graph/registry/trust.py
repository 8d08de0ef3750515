"""Contracts are checked when a plugin is resolved, so that a broken one is blamed and not what uses it.

Decision: a plugin may do anything when it is imported, except take the tool down; all that it raises becomes one
problem that names the plugin, its distribution, the exception and the line.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import attrs

from petra_graph.errors import PetraGraphError, PluginError, Problem, shown
from petra_graph.registry import contracts
from petra_graph.registry.contracts import Declaration
from petra_graph.registry.discovery import Entry
from petra_graph.spec.strict import check_readable

T = TypeVar("T")

DECLARATIONS: dict[str, type[Declaration]] = {
    contracts.BLOCKS: contracts.BlockDeclaration,
    contracts.ARCHITECTURES: contracts.ArchitectureDeclaration,
    contracts.OPTIMIZERS: contracts.OptimizerDeclaration,
    contracts.LR_SCHEDULES: contracts.LrScheduleDeclaration,
    contracts.LOSSES: contracts.LossDeclaration,
    contracts.DATASETS: contracts.DataSetDeclaration,
}
KINDS = ("reversible", "buffered", "head")


def checked_declaration(entry: Entry, noun: str) -> Declaration:
    """Load an entry point's declaration and check it against its group's contract.

    Raises:
        PluginError: it cannot be loaded, or is not what its group declares.
    """
    who = f"{noun} {shown(entry.name)} of {entry.distribution}"
    declaration = guarded(entry.load, f"{who} cannot be loaded from {entry.target!r}")
    fault = find_fault(declaration, DECLARATIONS[entry.group])
    if fault:
        raise PluginError(Problem(message=f"{who} is broken: {entry.target!r} {fault}", hint="tell its author"))
    return declaration  # type: ignore[no-any-return]  # find_fault has looked


def guarded(action: Callable[[], T], failure: str) -> T:
    """Run code of a plugin.

    Args:
        action: what to run.
        failure: what to say if it fails; the exception and its place are added.

    Raises:
        PluginError: it raised anything but an interruption by the keyboard, or one of our own errors.
    """
    try:
        return action()
    except (KeyboardInterrupt, PetraGraphError):
        raise
    except BaseException as error:
        raise PluginError(failed(failure, error)) from error


def failed(failure: str, error: BaseException) -> Problem:
    """Return the problem of plugin code that raised: what failed, the exception and where it came from."""
    what = traceback.format_exception_only(error)[-1].strip()
    return Problem(message=f"{failure}: {what}", hint=f"raised at {raised_at(error)}")


def raised_at(error: BaseException) -> str:
    """Return file:line of the code that raised, import machinery left out."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"


def find_fault(declaration: object, expected: type[Declaration]) -> str:
    """Return what is wrong with a declaration, as the end of a sentence; "" where nothing is."""
    if not isinstance(declaration, expected):
        return f"is {type(declaration).__name__}, not {expected.__name__}"
    return next((fault for rule in _RULES for fault in rule(declaration)), "")


def _code_is_named(declaration: Any) -> Iterator[str]:
    if not isinstance(declaration.build, str) or not re.fullmatch(r"[\w.]+:[\w.]+", declaration.build):
        yield f'has build = {declaration.build!r}, not "module:attribute"'


def _is_summarised(declaration: Any) -> Iterator[str]:
    if not isinstance(declaration.summary, str) or not declaration.summary.strip():
        yield "has no summary"


def _options_are_readable(declaration: Any) -> Iterator[str]:
    options = declaration.options
    if not isinstance(options, type) or not attrs.has(options):
        yield f"has options = {options!r}, which is not an attrs class"
        return
    try:
        check_readable(options)
    except Exception as error:  # noqa: BLE001  annotations are code of the plugin
        yield f"has options that cannot be read from TOML: {error}"


def _kind_is_known(declaration: Any) -> Iterator[str]:
    if isinstance(declaration, contracts.BlockDeclaration) and declaration.kind not in KINDS:
        yield f"has kind = {declaration.kind!r}, not one of {', '.join(KINDS)}"


def _optimizer_has_lr(declaration: Any) -> Iterator[str]:
    if isinstance(declaration, contracts.OptimizerDeclaration) and "lr" not in attrs.fields_dict(declaration.options):
        yield f"has options without `lr` ({declaration.options.__name__})"


def _facts_can_be_asked(declaration: Any) -> Iterator[str]:
    if isinstance(declaration, contracts.DataSetDeclaration) and not callable(cast(Any, declaration).facts):
        yield "has `facts` that cannot be called"


_RULES: tuple[Callable[[Any], Iterator[str]], ...] = (
    _code_is_named,
    _is_summarised,
    _options_are_readable,
    _kind_is_known,
    _optimizer_has_lr,
    _facts_can_be_asked,
)

"""Code of plugins' authors: what it raises is one problem before a training, and a traceback with a note in it. This imports no torch."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from attrs import field, frozen

from petra_graph.errors import PetraGraphError, PluginError, Problem, SpecError

BEFORE = "is written for petra-graph 0.2: let its options be keyword parameters, as in def __init__(self, inputs, *, kernel: int = 3)"
_PACKAGE = str(Path(__file__).parents[1])
_OURS = {"petra_graph_text", "petra_graph_vision"}
"""Packages of this project that call the code of authors, or read their files."""
_LIBRARY = sysconfig.get_paths()["stdlib"]


def is_author_code(file: str) -> bool:
    """Whether a file of code is an author's."""
    if (file.startswith(_LIBRARY) and "site-packages" not in file) or file.startswith(("<", f"{_PACKAGE}/")):
        return False
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    of_torch = torch is not None and file.startswith(torch.removesuffix("__init__.py"))
    return not of_torch and _OURS.isdisjoint(file.split(os.sep))  # noqa: PTH206  a digest asks of thousands of files


def author_line(error: BaseException) -> str:
    """Return file:line of the author's code that raised an error; "" where none of it did."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{frame.filename}:{frame.lineno}" for frame in frames if is_author_code(frame.filename)]
    return lines[-1] if lines else ""


@contextmanager
def author_code(failure: str | Callable[[], str], error: type[PetraGraphError] = PluginError) -> Iterator[None]:
    """Load or build a plugin, or read its data: an exception becomes one problem, in the exception's own words and with its line.

    Args:
        failure: the beginning of the message; or what makes it, once it is needed.
        error: the class that is raised, which decides the exit code. Our own errors, and an interruption by the keyboard, pass.
    """
    try:
        yield
    except (KeyboardInterrupt, PetraGraphError):
        raise
    except BaseException as raised:
        at = author_line(raised)
        said = traceback.format_exception_only(raised)[-1].strip()
        message = f"{failure if isinstance(failure, str) else failure()}: {said}"
        raise error(Problem(message=message, hint=at and f"raised at {at}")) from raised


@frozen
class noted:  # noqa: N801  it is used like a function: `with noted(...):`
    """Call a plugin in a training: an exception keeps its traceback, with a note that names the plugin and its place.

    It may be entered again and again.
    """

    note: str | Callable[[], str] = field()

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, raised: BaseException | None, _traceback: object) -> None:
        if isinstance(raised, Exception):
            raised.add_note(self.note if isinstance(self.note, str) else self.note())


def named_code(option: str, location: str) -> Any:
    """Return what an option annotated as `Code` names; what importing its module raises is left to the caller's caller, which names the line.

    Raises:
        SpecError: there is no such module, or it has no such attribute.
    """
    from petra_graph.plugins.local_plugins import find_code

    try:
        return find_code(location, getattr(location, "folders", ()))
    except (ImportError, AttributeError, ValueError) as error:
        hint = 'write "module:attribute", of a module that can be imported'
        raise SpecError(Problem(message=f"there is no {location}: {error}", hint=hint, path=(option,))) from error


@contextmanager
def importing(failure: str) -> Iterator[None]:
    """Import an author's code, as `author_code`; what it prints is no result of a command, and goes to standard error."""
    with author_code(failure), redirect_stdout(sys.stderr):
        try:
            yield
        except ImportError as error:
            if error.name in {"petra_graph.plugins", "petra_graph.blocks"}:
                raise PluginError(f"{failure}: {error.msg}", f"it {BEFORE}") from error
            raise

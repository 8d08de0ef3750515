"""Code of plugins' authors: what it raises is one problem before a training, and a traceback with a note in it. This imports no torch."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import field, frozen

from petra_graph.errors import PetraGraphError, PluginError, Problem

_PACKAGE, _LIBRARY = f"{Path(__file__).parents[1]}/", sysconfig.get_paths()["stdlib"]
_CALL_AUTHORS = re.compile(r"/site-packages/torch/|/petra_graph_(text|vision)/")
"""Libraries that call the code of authors, or read their files."""


def is_author_code(file: str) -> bool:
    """Whether a file of code is an author's."""
    of_python = file.startswith(("<", _LIBRARY)) and "site-packages" not in file
    return not of_python and not file.startswith(_PACKAGE) and _CALL_AUTHORS.search(file) is None


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

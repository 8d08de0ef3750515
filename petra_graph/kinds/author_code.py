"""Code of plugins' authors: how it is run, and which line of it raised an error. This imports no torch."""

from __future__ import annotations

import importlib.util
import json
import os
import pkgutil
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import metadata
from pathlib import Path
from typing import Any

from attrs import field, frozen

from petra_graph.errors import PetraGraphError, PluginError, Problem, SpecError
from petra_graph.kinds.shared_settings import SET_WITHIN, put_back, settings

_PACKAGE = str(Path(__file__).parents[1])
_MACHINERY = ("<frozen", pkgutil.__file__, importlib.__file__, str(Path(__file__).parent))
"""What calls the code of authors."""
_KITS = {"petra_graph_authoring", "petra_graph_conformance"}
_OURS = {*_KITS, "petra_graph_modules", "petra_graph_vision"}
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
    frames = traceback.extract_tb(error.__traceback__)
    return _last_line(frame for frame in frames if is_author_code(frame.filename))


def raised_at(error: BaseException) -> str:
    """Return file:line of the code that raised an error: the author's if there is any, else whichever code it was.

    Return "" where only the machinery that imports and calls an author's code has run.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    others = (
        one for one in frames if not one.filename.startswith(_MACHINERY) and _KITS.isdisjoint(Path(one.filename).parts)
    )
    return author_line(error) or _last_line(others)


def _last_line(frames: Iterable[traceback.FrameSummary]) -> str:
    lines = [f"{frame.filename}:{frame.lineno}" for frame in frames]
    return lines[-1] if lines else ""


AUTHOR, MEND = "report it to its author", "mend its code"


def remedy(distribution: str) -> str:
    """Return what to do about wrong code of a distribution: its author mends it where it is local, or installed for editing."""
    return MEND if not distribution or _is_editable(distribution) else AUTHOR


def _is_editable(distribution: str) -> bool:
    try:
        record = json.loads(metadata.distribution(distribution).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return False
    return bool(record.get("dir_info", {}).get("editable"))


@frozen
class author_code:  # noqa: N801  it is used like a function: `with author_code(...):`
    """Run code of a plugin's author: an exception becomes one problem that names the plugin, the exception and the line.

    Decision: this is the one place where what a plugin raises is caught, so that no verb ends with a traceback. It lets an
    interruption by the keyboard and our own errors pass.

    Attributes:
        failure: the beginning of the message, as in 'loss "hinge" of my-losses failed'; or what makes it, once it is needed.
        error: the class that is raised, which decides the exit code.
        training: the code runs in a training, where memory that runs out is not the plugin's fault, and an exit is the stage's.
        mend: what to do where no line of code has raised it.
    """

    failure: str | Callable[[], str]
    error: type[PetraGraphError] = field(default=PluginError, kw_only=True)
    training: bool = field(default=False, kw_only=True)
    mend: str = field(default=AUTHOR, kw_only=True)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, raised: BaseException | None, _traceback: object) -> None:
        if raised is None or isinstance(raised, KeyboardInterrupt | PetraGraphError):
            return
        # torch has an OutOfMemoryError of its own, on a GPU
        is_memory = isinstance(raised, MemoryError) or type(raised).__name__ == "OutOfMemoryError"
        if self.training and (is_memory or not isinstance(raised, Exception)):
            return
        failure = self.failure if isinstance(self.failure, str) else self.failure()
        raise self.error(blamed(failure, raised, self.mend)) from raised


def blamed(failure: str, raised: BaseException, mend: str = AUTHOR) -> Problem:
    """Return what an author's code raised as a problem, with the line in its hint."""
    exception = traceback.format_exception_only(raised)[-1].strip()
    at = raised_at(raised)
    hint = f"raised at {at}" if at else mend
    return Problem(message=f"{failure}: {exception}", hint=hint)


def resolve_location(location: str, failure: str, mend: str = AUTHOR) -> Any:
    """Return what "module:attribute" names, which a declaration has given; `mend` is what to do if nothing is there.

    Raises:
        PluginError: it cannot be imported; the message begins with `failure`.
    """
    with importing(failure, mend):
        return pkgutil.resolve_name(location)


def named_code(option: str, location: str) -> Any:
    """Return what an option names; what importing its module raises is left to the caller's caller, which names the line.

    Raises:
        SpecError: there is no such module, or it has no such attribute.
    """
    try:
        return pkgutil.resolve_name(location)
    except (ImportError, AttributeError, ValueError) as error:
        hint = 'write "module:attribute", of a module that can be imported'
        raise SpecError(Problem(message=f"there is no {location}: {error}", hint=hint, path=(option,))) from error


@contextmanager
def importing(failure: str, mend: str = AUTHOR) -> Iterator[None]:
    """Import an author's code, as `author_code`; what it prints is no result of a command, and goes to standard error.

    Raises:
        PluginError: it cannot be imported, or leaves a setting changed that all code shares.
    """
    before = settings()
    try:
        with author_code(failure, mend=mend), redirect_stdout(sys.stderr):
            yield
    finally:
        changed = put_back(before)
    if changed:
        raise PluginError(f"{failure}: after its import, {changed}", SET_WITHIN)

"""Code of plugins' authors: what it raises is one problem before a training, and a traceback with a note in it. This imports no torch.

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
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from petra_graph.errors import PetraGraphError, PluginError, Problem, SpecError

FIRST_PARTY = "petra-graph"
OWN = {FIRST_PARTY, *(f"{FIRST_PARTY}-{name}" for name in ("convnext", "studies", "text", "vision"))}
"""This project's distributions, whose plugins are tried by its tests, and by no run."""
_PACKAGE, _LIBRARY = map(re.escape, (str(Path(__file__).parents[1]), sysconfig.get_paths()["stdlib"]))
_CALLERS = re.compile(
    rf"<|{_PACKAGE}/|{_LIBRARY}/(?!.*site-packages)|.*/(site-packages/torch|petra_graph_(text|vision))/"
)
"""Python's files, our own, and those of libraries that call the code of authors, or read their files."""


def author_line(error: BaseException) -> str:
    """Return file:line of the author's code that raised an error; "" where none of it did."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((f"{one.filename}:{one.lineno}" for one in frames if not _CALLERS.match(one.filename)), "")


@contextmanager
def author_code(
    failure: str | Callable[[], str], error: type[PetraGraphError] = PluginError, refused: str = ""
) -> Iterator[None]:
    """Load or build a plugin, or read its data: what that raises is one problem, which `failure` begins, with the line of its author.

    `refused` is who refuses options by a ValueError or TypeError, which is then a SpecError.
    """
    try:
        yield
    except (KeyboardInterrupt, PetraGraphError):
        raise
    except BaseException as raised:
        at = author_line(raised)
        if refused and isinstance(raised, TypeError | ValueError):
            message, error = f"{refused}: {raised}", SpecError
        else:
            said = traceback.format_exception_only(raised)[-1].strip()
            message = f"{failure if isinstance(failure, str) else failure()}: {said}"
        raise error(Problem(message=message, hint=at and f"raised at {at}")) from raised


@contextmanager
def noted(note: str) -> Iterator[None]:
    """Call a plugin in a training: an exception keeps its traceback, with a note that names the plugin and its place."""
    try:
        yield
    except Exception as raised:
        raised.add_note(note)
        raise


CODE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")  # module:attribute
_PRIVATE = "_petra_graph_beside_"
_added: list[str] = []  # folders that are on Python's path because specifications lie there


def find_code(location: str, folders: Sequence[str] = ()) -> Any:
    """Return what "module:attribute" names, of a module in one of the folders, or that Python finds; what its import raises is passed on."""
    name, _, attribute = location.partition(":")
    for folder in folders:
        if folder not in sys.path:  # at its end: for what a module imports later
            sys.path.append(folder)
            _added.append(folder)
    places = (Path(folder, *name.split(".")) for folder in folders)
    files = (file for place in places for file in (place.with_suffix(".py"), place / "__init__.py"))
    file = next((file.resolve() for file in files if file.is_file()), None)
    root, top = file and file.parents[name.count(".") + (file.name == "__init__.py")], name.partition(".")[0]
    known = sys.modules.get(top) or PathFinder.find_spec(top)
    found = getattr(known, "__file__", None) or getattr(known, "origin", None)
    if root is None or (found and Path(found).resolve().is_relative_to(root)):
        module = importlib.import_module(name)
    else:
        with _package_of(str(root)) as package:
            module = importlib.import_module(f"{package}.{name}")
    return reduce(getattr, attribute.split("."), module)


def named_code(option: str, location: str) -> Any:
    """Return what an option annotated as `Code` names; SpecError: there is no such module, or it has no such attribute."""
    try:
        return find_code(location, getattr(location, "folders", ()))
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError(f"there is no {location}: {error}", path=(option,)) from error


@contextmanager
def _package_of(folder: str) -> Iterator[str]:
    """Make a folder a package of its own name; plain imports of its modules find these, and move into it afterwards."""
    package = _PRIVATE + hashlib.sha256(folder.encode()).hexdigest()[:12]
    importlib.invalidate_caches()  # a file may be younger than the last import
    sys.modules.setdefault(package, ModuleType(package)).__path__ = [folder]
    files = (*Path(folder).glob("*.py"), *(file.parent for file in Path(folder).glob("*/__init__.py")))
    own = {file.stem for file in files}
    # What is imported already under these names is another folder's, or Python's: it steps aside meanwhile.
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in own}
    before = set(sys.modules)
    # What this folder's files have imported before is found under its plain names again, so that it is there once.
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

"""Which line of code is an author's: neither torch's, nor Python's own, nor this package's. This imports no torch."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1])
_MACHINERY = ("<frozen", pkgutil.__file__, importlib.__file__, str(Path(__file__).parent))
"""What calls the code of authors."""
_LIBRARY = sysconfig.get_paths()["stdlib"]


def is_author_code(file: str) -> bool:
    """Whether a file of code is an author's."""
    torch = sys.modules.get("torch")
    others = [_PACKAGE] if torch is None or torch.__file__ is None else [_PACKAGE, str(Path(torch.__file__).parent)]
    library = file.startswith(_LIBRARY) and "site-packages" not in file
    return not (library or file.startswith("<") or any(file.startswith(f"{folder}/") for folder in others))


def author_line(error: BaseException) -> str:
    """Return file:line of the author's code that raised an error; "" where none of it did."""
    frames = traceback.extract_tb(error.__traceback__)
    return _last_line(frame for frame in frames if is_author_code(frame.filename))


def raised_at(error: BaseException) -> str:
    """Return file:line of the code that raised an error: the author's or, where there is none of it, any.

    Where only the machinery has run that imports and calls an author's code, "".
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    return author_line(error) or _last_line(frame for frame in frames if not frame.filename.startswith(_MACHINERY))


def _last_line(frames: Iterable[traceback.FrameSummary]) -> str:
    lines = [f"{frame.filename}:{frame.lineno}" for frame in frames]
    return lines[-1] if lines else ""

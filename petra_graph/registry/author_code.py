"""Which line of code is an author's: neither torch's, nor Python's own, nor this package's. This imports no torch."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path

import petra_graph

_PACKAGE = str(Path(petra_graph.__file__).parent)
_LIBRARY = sysconfig.get_paths()["stdlib"]


def is_author_code(file: str) -> bool:
    """Whether a file of code is an author's."""
    torch = sys.modules.get("torch")
    others = [_PACKAGE] if torch is None or torch.__file__ is None else [_PACKAGE, str(Path(torch.__file__).parent)]
    library = file.startswith(_LIBRARY) and "site-packages" not in file
    return not (library or file.startswith("<") or any(file.startswith(f"{folder}/") for folder in others))


def author_line(error: BaseException) -> str:
    """Return file:line of the author's code that raised an error; "" where none of it did."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_author_code(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""

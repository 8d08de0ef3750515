"""Where a data set's files are, and what is said when they are not there."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from petra_graph.errors import Problem, SpecError

ROOT = ("data", "options", "root")
"""The key that names the place, as problems point to it."""


def expanded(root: str) -> Path:
    """Return `root` as an absolute path, with ~ and $NAME expanded.

    Raises:
        SpecError: nobody knows the home that ~ stands for.
    """
    try:
        return Path(os.path.expandvars(root)).expanduser().absolute()
    except RuntimeError:
        raise problem(f"nobody knows the home in {root!r}", hint="write the whole path, or set HOME") from None


def problem(message: str, hint: str) -> SpecError:
    """Return an error about the files under `root`."""
    return SpecError(Problem(message=message, hint=hint, path=ROOT))


def find_folder(name: str, candidates: Iterable[Path], needs: Iterable[str], *, hint: str) -> Path:
    """Return the first candidate that has all the files `needs`.

    Args:
        name: The data set's name, for the message.
        candidates: Folders to look in, in order.
        needs: File names that the folder must have.
        hint: The layout, and where to get the files.

    Raises:
        SpecError: No candidate has them; the message says for each what it lacks.
    """
    needed = tuple(needs)
    lacks: list[str] = []
    for folder in candidates:
        missing = [file for file in needed if not (folder / file).is_file()]
        if not missing:
            return folder
        if not folder.is_dir():
            lacks.append(f"{folder} is not a folder")
        elif len(missing) == len(needed):
            lacks.append(f"{folder} has none of {listed(needed)}")
        else:
            lacks.append(f"{folder} lacks {listed(missing)}")
    raise problem(f"the files of {name} are not there: {'; '.join(lacks)}", hint)


def listed(names: Iterable[str], *, most: int = 4) -> str:
    """Write some of the names, and how many there are beyond them."""
    every = list(names)
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {rest} more" if rest > 0 else "")

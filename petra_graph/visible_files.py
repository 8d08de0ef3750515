"""The files below a folder, as a data set and a prediction read them: without hidden ones, such as macOS adds to an archive (._cat.jpg)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from errno import ELOOP
from pathlib import Path


def visible_files(folder: Path) -> Iterator[str]:
    """Yield the files below a folder in no order; a directory entry tells a file from a pipe without opening it.

    Raises:
        OSError: a folder cannot be read, or a link leads back to a folder that it is in.
    """
    waiting = [(str(folder), frozenset({os.path.realpath(folder)}))]
    while waiting:
        at, above = waiting.pop()
        with os.scandir(at) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    linked = {os.path.realpath(entry.path)} if entry.is_symlink() else set[str]()
                    if linked & above:
                        raise OSError(ELOOP, "it is a link to a folder that it is in", entry.path)
                    waiting.append((entry.path, above | linked))
                elif entry.is_file():
                    yield entry.path

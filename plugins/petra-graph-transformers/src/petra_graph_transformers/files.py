"""The files of a text, in an order that is the same on every machine."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from petra_graph.plugins import Problem, SpecError

STDLIB = "stdlib"
_INSTALLED = {"site-packages", "dist-packages"}
"""Folders inside the standard library's that belong to other packages."""


def read_files(root: str, pattern: str, *, utf8: bool = False) -> Iterator[bytes]:
    """Yield the contents of a file, or of a folder's files in the order of their names.

    Args:
        root: the file or folder, or "stdlib".
        pattern: of a folder's files.
        utf8: refuse a file that is not.

    Raises:
        SpecError: there is no file, or one cannot be read.
    """
    for file in files_of(root, pattern):
        try:
            content = file.read_bytes()
            if utf8:
                content.decode()
        except OSError as error:
            raise _error(f"{file} cannot be read: {error.strerror or error}", "give files that you may read") from error
        except UnicodeDecodeError as error:
            raise _error(
                f"{file} is not text in UTF-8: byte {error.start}",
                'name the text files with pattern, or use data set "text-bytes"',
            ) from error
        yield content


def files_of(root: str, pattern: str) -> list[Path]:
    """Return the files.

    Raises:
        SpecError: there is none.
    """
    folder = folder_of(root)
    if folder.is_file():
        return [folder]
    left_out = _INSTALLED if root == STDLIB else set()
    found = []
    try:
        for file in folder.glob(pattern) if folder.is_dir() else ():
            parts = file.relative_to(folder).parts
            if file.is_file() and not any(part.startswith(".") or part in left_out for part in parts):
                found.append((parts, file))
    except (ValueError, NotImplementedError) as error:
        raise _error(f"pattern {pattern!r} cannot be used: {error}", 'write one as in "**/*.txt"', "pattern") from error
    if not found:
        what = f"no file {pattern!r} in {folder}" if folder.is_dir() else f"no file or folder {folder}"
        raise _error(f"there is {what}", f'give a text file, a folder of them, or root = "{STDLIB}"')
    return [file for _, file in sorted(found)]


def folder_of(root: str) -> Path:
    """Return `root` as an absolute path.

    Raises:
        SpecError: no home directory is known for ~.
    """
    if root == STDLIB:
        return Path(sysconfig.get_path("stdlib"))
    try:
        return Path(os.path.expandvars(root)).expanduser().absolute()
    except RuntimeError:
        raise _error(f"no home directory is known for {root!r}", "write the whole path, or set HOME") from None


def _error(message: str, hint: str, key: str = "root") -> SpecError:
    return SpecError(Problem(message=message, hint=hint, path=(key,)))

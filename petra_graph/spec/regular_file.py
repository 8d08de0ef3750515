"""Files that anyone may have put in a run's directory or beside a specification: read if they are regular and not too long."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

MOST_BYTES = 2**27
"""The largest file that is read whole."""


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read its bytes; a pipe or a device would give none, or never end.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    opener = lambda name, flags: os.open(name, flags | os.O_NONBLOCK)  # noqa: E731  a pipe would wait for a writer
    file = open(path, "rb", opener=opener)  # noqa: SIM115  pathlib's has no opener; the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return file


def read_regular(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the bytes of a file.

    Raises:
        OSError: as `open_regular`, or the file is longer than `most_bytes`.
    """
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"more than {most_bytes // 2**20} MiB")
    return content

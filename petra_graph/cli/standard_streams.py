"""The standard streams of a process, which may be closed, and whose readers may end before it does.

`run 2>&1 | head -2` must not end a training: from the first write that nobody reads, a stream leads to the null device, for
this process and all libraries in it. A full disk behind a stream is an error still.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NOBODY_READS = (errno.EPIPE, errno.EIO)
"""The reader has ended, or the terminal has gone."""


def prepare_streams() -> None:
    """Open closed standard streams on the null device, and make writes to streams that nobody reads succeed."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # Otherwise the next file that is opened would be taken for the stream.
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = _text(1, sys.stdout, line_buffering=os.isatty(1))
    sys.stderr = _text(2, sys.stderr, line_buffering=True)


class _Steady(io.FileIO):
    """The raw end of a stream that leads to the null device when nobody reads it any more."""

    def write(self, content: ReadableBuffer, /) -> int:
        """Write, or forget what nobody reads."""
        try:
            return super().write(content)
        except OSError as error:
            if error.errno not in _NOBODY_READS:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(content).nbytes


def _text(descriptor: int, before: TextIO | None, *, line_buffering: bool) -> TextIO:
    """Return a stream of text; where its encoding lacks an arrow of a plan, the arrow's code appears."""
    if before is not None:
        before.flush()
    raw = io.BufferedWriter(_Steady(descriptor, "wb", closefd=False))
    encoding = None if before is None else before.encoding
    return io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=line_buffering)

"""Freed CPU memory, kept by the process for its next tensors.

glibc gives the top of its heap back to the system whenever enough of it is free, and the next operation takes a page fault for every four
KiB again: thousands a micro-batch, several per cent of its time. Peaks are the same.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of mallopt(3)."""
_KEPT_BYTES = 2**31 - 1
_FROM_HEAP_BYTES = 2**25
"""The most that glibc allows: larger tensors come from the system each time."""
_CHOSEN_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Keep freed memory in this process; return whether it does.

    Nothing changes where a user has set the allocator's own variables, or where it is not glibc's.
    """
    if any(name in os.environ for name in _CHOSEN_BY_USER):
        return False
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(_MMAP_THRESHOLD, _FROM_HEAP_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))
    return False

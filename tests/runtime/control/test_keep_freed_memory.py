"""Tests of `petra_graph.runtime.control.keep_freed_memory`."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes
PROGRAM = """
import ctypes, sys
from petra_graph.runtime.control.keep_freed_memory import keep_freed_memory

kept = keep_freed_memory() if sys.argv[1] == "keep" else False
system = ctypes.CDLL(None)
system.malloc.restype, system.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
taken = [system.malloc(2**24) for _ in range(16)]
for block in taken:
    system.free(block)

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena a b c d e f g free keepcost".split()]

system.mallinfo2.restype = Info
print(kept, system.mallinfo2().arena)
"""


def told(argument: str, **variables: str) -> tuple[str, int]:
    """Allocate and free 256 MiB in a process of its own; return what it says, and how much its heap has afterwards."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, argument],
        capture_output=True,
        text=True,
        check=True,
        env={**environment, **variables},
    )
    kept, heap_bytes = done.stdout.split()
    return kept, int(heap_bytes)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_what_was_freed_stays_in_the_heap():
    kept, heap_bytes = told("keep")
    assert kept == "True"
    assert heap_bytes > 2**28
    assert told("leave")[1] < 2**27


def test_what_the_user_has_chosen_stays():
    assert told("keep", MALLOC_TRIM_THRESHOLD_="100000")[0] == "False"

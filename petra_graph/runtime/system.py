"""What a process has from its system: requests to stop, by signals and by the end of its parent; and freed memory.

Before a run has a directory, or a rank its watchdog, there is nothing to lose: imports take seconds, and an exception that a handler raises
in them may be swallowed, so that a request ends the process where it is. Afterwards SIGINT, SIGTERM and SIGHUP each ask, and a second
SIGINT insists.

glibc gives the top of its heap back to the system whenever enough of it is free, and the next operation takes a page fault for every four
KiB again: thousands a micro-batch, several per cent of its time. A run keeps it; peaks are the same.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread
from types import FrameType
from typing import NoReturn

REQUESTS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that ask a run to stop."""
_INTERRUPTED = 130
LAUNCHER = "PETRA_GRAPH_LAUNCHER"
"""The environment variable with the process of the launcher that started this one."""
PARENT = "PETRA_GRAPH_SWEEP"
"""The environment variable with the process of a sweep, of which this one is a run."""
_SIGNAL_AT_END_OF_PARENT = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""


def end_at_signals() -> None:
    """End this process at a request to stop, until other handlers are installed; a signal that is ignored stays ignored."""
    for number in REQUESTS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)


def ignore_signals() -> None:
    """Ignore requests to stop: everything is written, and the exit code is known."""
    for number in REQUESTS:
        signal.signal(number, signal.SIG_IGN)


def stop_with_parent(variable: str) -> None:
    """Have the system ask this process to stop when its parent, whose number is in a variable, has ended, however that ended."""
    at_end_of_parent(signal.SIGTERM)
    if os.getppid() != int(os.environ.pop(variable)):  # it had ended before
        os.kill(os.getpid(), signal.SIGTERM)


def at_end_of_parent(number: int) -> None:
    """Have the system send this process a signal when its parent has ended; 0: none any more."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SIGNAL_AT_END_OF_PARENT, number)


def hard_exit(code: int) -> NoReturn:
    """End this process now, whatever its threads wait for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end(_: int, __: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(_INTERRUPTED)


def numbers_of(name: str | None) -> tuple[int, ...]:
    """Return the number of a signal by its name; none for None."""
    return () if name is None else (signal.Signals[name],)


@contextmanager
def stop_requests(
    request: Callable[[str], None],
    insist: Callable[[], object],
    *,
    insistent: Collection[int] = (signal.SIGINT,),
    ends_process: bool = False,
    heard: Collection[int] = REQUESTS,
) -> Iterator[None]:
    """Handle signals within the context; outside the main thread, where signals never arrive, install nothing.

    A signal that is ignored stays ignored, as SIGHUP under nohup.

    Args:
        request: called with the signal's name.
        insist: called instead for an insistent signal after another one.
        insistent: the signals of which a second one insists.
        ends_process: the process ends after the context, so signals are ignored from then on.
        heard: the signals that are handled.
    """
    received: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        if number in insistent and received:
            insist()
        if number in insistent:
            received.append(number)
        request(signal.Signals(number).name)

    if current_thread() is not main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in heard if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if ends_process else handler)


# --- freed memory -------------------------------------------------------------------------------------------------------

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

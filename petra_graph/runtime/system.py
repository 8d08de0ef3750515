"""What a process has from its system: requests to stop, by signals and by the end of its parent; events to wait for; freed memory.

Before a run has a directory, or a rank its watchdog, there is nothing to lose: imports take seconds, and an exception that a handler raises
in them may be swallowed, so that a request ends the process where it is. Afterwards SIGINT, SIGTERM and SIGHUP each ask, and a second
SIGINT insists.

Every source of events has a file descriptor that becomes readable, so one poll waits for all of them without using the processor.

A job may be suspended for any time: by Ctrl-Z, by a batch system. All clocks run on meanwhile, so a limit on a clock alone would find
everything late that was on its way, in the process that wakes first. So whoever waits looks often: if a look comes late, this process
was not running, and that time does not count.

glibc gives the top of its heap back to the system whenever enough of it is free, and the next operation takes a page fault for every four
KiB again: thousands a micro-batch, several per cent of its time. A run keeps it; peaks are the same.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from threading import current_thread, main_thread
from types import FrameType
from typing import NoReturn, TypeVar

T = TypeVar("T")
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

    def end(_: int, __: FrameType | None) -> None:
        with suppress(OSError):
            os.write(2, b"interrupted\n")
        os._exit(_INTERRUPTED)

    for number in REQUESTS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)


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


@contextmanager
def stop_requests(
    request: Callable[[str], None], insist: Callable[[], object], *, ends_process: bool = False
) -> Iterator[None]:
    """Handle requests to stop within the context; outside the main thread, where signals never arrive, install nothing.

    A signal that is ignored stays ignored, as SIGHUP under nohup.

    Args:
        request: called with the signal's name.
        insist: called at a second SIGINT.
        ends_process: the process ends after the context, so signals are ignored from then on.
    """
    received: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT:
            if received:
                insist()
            received.append(number)
        request(signal.Signals(number).name)

    if current_thread() is not main_thread():
        yield
        return
    heard = [number for number in REQUESTS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if ends_process else handler)


# --- waiting ------------------------------------------------------------------------------------------------------------

_LOOK_SECONDS = 0.01
_LATE_SECONDS = 2.0
"""What counts at most between two looks; a busy machine may delay a look by as much."""


class Waker:
    """Waits for any of several descriptors, and for `wake` from another thread.

    It drains a readable descriptor at once: otherwise a source that the scheduler does not look at for the moment would keep waking the
    process.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self._drains: dict[int, Callable[[], object]] = {}
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.attach(self._woken, lambda: os.eventfd_read(self._woken))

    def attach(self, descriptor: int, drain: Callable[[], object]) -> None:
        """Wake up when `descriptor` is readable; `drain` then reads all of it."""
        self._poll.register(descriptor, select.POLLIN)
        self._drains[descriptor] = drain

    def wake(self) -> None:
        """End the present `wait`, or the next one; from any thread."""
        os.eventfd_write(self._woken, 1)

    def wait(self) -> None:
        """Sleep until an event has come."""
        for descriptor, event in self._poll.poll():
            if event & select.POLLIN:
                self._drains[descriptor]()
            else:
                self._poll.unregister(descriptor)  # the other process has died, which the watchdog reports


class AwakeTime:
    """Counts the seconds without those in which this process was suspended, for one thread, which looks several times a second."""

    def __init__(self) -> None:
        self._counted, self._looked = 0.0, time.monotonic()

    @property
    def seconds(self) -> float:
        """Look, and return the seconds since this began."""
        before, self._looked = self._looked, time.monotonic()
        self._counted += min(self._looked - before, _LATE_SECONDS)
        return self._counted


def until(look: Callable[[], T], seconds: float = inf) -> T:
    """Look until there is something to see, for at most some seconds while this process is awake; return what was seen last.

    A look may raise what ends the wait: where torch has lost another process, a check of the watchdog raises the cause once it is known.
    """
    waits = AwakeTime()
    while not (found := look()) and waits.seconds < seconds:
        time.sleep(_LOOK_SECONDS)
    return found


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

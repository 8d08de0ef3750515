"""How a process sleeps until an event: a message, room for a message, a request to stop, a failure.

Every event source has a file descriptor that becomes readable, so one poll waits for all of them without using the
processor. The waker drains a readable descriptor at once: otherwise a source that the scheduler does not look at for
the moment would keep waking the process.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress


class Waker:
    """Waits for any of several descriptors, and for `wake` from another thread."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._drains: dict[int, Callable[[], object]] = {}
        self._read_end, self._wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.attach(self._read_end, lambda: os.read(self._read_end, 4096))

    def attach(self, descriptor: int, drain: Callable[[], object]) -> None:
        """Wake up when `descriptor` is readable; `drain` then reads all of it."""
        self._poll.register(descriptor, select.POLLIN)
        self._drains[descriptor] = drain

    def wake(self) -> None:
        """End the present `wait`, or the next one; from any thread."""
        with suppress(BlockingIOError):  # the pipe is full, so the process wakes up anyway
            os.write(self._wake_end, b"!")

    def wait(self) -> None:
        """Sleep until an event has come."""
        for descriptor, event in self._poll.poll():
            if event & select.POLLIN:
                self._drains[descriptor]()
            else:
                self._poll.unregister(descriptor)  # the other process has died, which the watchdog reports

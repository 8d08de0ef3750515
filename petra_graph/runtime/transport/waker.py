"""How a process sleeps until something has arrived: a message, room for one, a request to stop, a failure.

Whatever can arrive has a file descriptor that becomes readable, so one poll waits for all of it without using the
processor. What is read off a descriptor is handed to whom it belongs at once: else one that nobody asks about at the
moment would keep waking the process.
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
        """Wake up when `descriptor` is readable; `drain` then reads all that is there."""
        self._poll.register(descriptor, select.POLLIN)
        self._drains[descriptor] = drain

    def wake(self) -> None:
        """Wake up whoever waits, or who will wait next; from any thread."""
        with suppress(BlockingIOError):  # full: it will wake up anyway
            os.write(self._wake_end, b"!")

    def wait(self) -> None:
        """Sleep until something has arrived."""
        for descriptor, event in self._poll.poll():
            if event & select.POLLIN:
                self._drains[descriptor]()
            else:
                self._poll.unregister(descriptor)  # the other end has gone; who watches processes will say so

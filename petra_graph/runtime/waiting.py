"""How a process waits: asleep until an event comes, and for how long while it was awake.

Every source of events has a file descriptor that becomes readable, so one poll waits for all of them without using the processor.

A job may be suspended for any time: by Ctrl-Z, by a batch system. All clocks run on meanwhile, so a limit on a clock alone would find
everything late that was on its way, in the process that wakes first. So whoever waits looks often: if a look comes late, this process
was not running, and that time does not count.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from math import inf
from typing import TypeVar

T = TypeVar("T")
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

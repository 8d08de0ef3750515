"""How long something has lasted while this process was awake.

A job may be suspended for any time: by Ctrl-Z, by a batch system, by the lid of a laptop. All clocks run on meanwhile, so a limit
on a clock alone would find everything late that was on its way, in the process that wakes first. So whoever waits
looks often: where a look comes late, this process was not running, and that time does not count.
"""

from __future__ import annotations

import time
from collections import deque

_LATE_SECONDS = 2.0
"""What counts at most between two looks; a busy machine may delay a look by as much."""
_KEPT = 1000
"""Suspensions that are remembered: batch systems may suspend a job again and again."""


class AwakeTime:
    """Seconds without those in which this process was suspended, for one thread."""

    def __init__(self) -> None:
        self._began = self._looked = time.monotonic()
        self._suspensions: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        """Beginning and end of each."""

    def look(self) -> None:
        """Notice a suspension; to be called several times a second."""
        before, self._looked = self._looked, time.monotonic()
        if self._looked - before > _LATE_SECONDS:
            self._suspensions.append((before + _LATE_SECONDS, self._looked))

    @property
    def seconds(self) -> float:
        """Look, and return the seconds since this began."""
        return self.since(self._began)

    def since(self, moment: float) -> float:
        """Look, and return the seconds since a moment of `time.monotonic`."""
        self.look()
        suspended = (max(0.0, end - max(begin, moment)) for begin, end in self._suspensions)
        return self._looked - moment - sum(suspended)

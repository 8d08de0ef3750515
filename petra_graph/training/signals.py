"""A request to stop, taken between two operations.

The first SIGINT or SIGTERM asks; the run stops at its next micro-batch with everything written. A second one stops at
once, wherever it is.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

from petra_graph.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether somebody asked to stop."""

    def __init__(self) -> None:
        self._signal: signal.Signals | None = None

    def ask(self, number: int, _: FrameType | None = None) -> None:
        """Take note of a signal; the second one takes its usual effect."""
        if self._signal is not None:
            raise KeyboardInterrupt
        self._signal = signal.Signals(number)

    def obey(self) -> None:
        """Stop here if somebody asked.

        Raises:
            Interrupted: somebody did.
        """
        if self._signal is not None:
            raise Interrupted(self._signal.name)


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turn signals into requests; outside the main thread, where signals never arrive, nothing is installed."""
    request = StopRequest()
    if current_thread() is not main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.ask) for number in _SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

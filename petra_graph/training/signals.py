"""Signals as requests to stop, for a run in one process.

The first SIGINT or SIGTERM asks; the run stops between two operations with everything written. A second one stops at
once, wherever it is.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

from petra_graph.runtime.scheduler.context import Supervisor

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_requests(supervisor: Supervisor) -> Iterator[None]:
    """Turn signals into requests; outside the main thread, where signals never arrive, nothing is installed."""

    def ask(number: int, _: FrameType | None) -> None:
        if supervisor.asked is not None:
            raise KeyboardInterrupt
        supervisor.asked = signal.Signals(number).name

    if current_thread() is not main_thread():
        yield
        return
    before = {number: signal.signal(number, ask) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

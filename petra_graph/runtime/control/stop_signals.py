"""Signals as requests to stop, SIGINT, SIGTERM and SIGHUP: each asks, and a second SIGINT insists."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

from petra_graph.runtime.control.start_up import REQUESTS


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

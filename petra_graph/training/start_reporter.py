"""What a start is busy with, printed if a step of it takes long, with the line of code that runs.

A start runs code of other packages that no one has run in this network before: declarations, a data set's files, shapes, the
self-check. If that hangs, a thread says so; in a run of several processes the watchdog fails the run after `run.watchdog`
if the self-check hangs, as it does for an operation of a stage.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from threading import Event, Thread, get_ident
from types import FrameType

from petra_graph.errors import printable
from petra_graph.kinds.author_code import is_author_code
from petra_graph.runtime.control.failure import StartStatus
from petra_graph.runtime.control.watchdog import Watchdog

_SECONDS, _AGAIN_SECONDS = (5.0, 25.0), 60.0
"""From the beginning of a step until it is printed, then until it is printed again, and between all further lines."""


class StartReporter:
    """Prints which step of a start takes long.

    Args:
        prefix: of each line, such as the process's rank.
        watchdog: of this process, if the run has several.
        say: called with each line.
    """

    def __init__(
        self, prefix: str = "", watchdog: Watchdog | None = None, say: Callable[[str], None] | None = None
    ) -> None:
        self._prefix, self._watchdog, self._say = prefix, watchdog, say or _print

    @contextmanager
    def step(self, text: str, limit_seconds: float = float("inf"), *, ours: bool = False) -> Iterator[None]:
        """Within the context, this thread is busy with what `text` says, as in "placing the stages".

        Args:
            text: of the step.
            limit_seconds: after which a watchdog fails the run.
            ours: whether the step runs this package's code: which line of a library it is at helps nobody.
        """
        thread, outside = get_ident(), sys._getframe(2).f_back  # noqa: SLF001  the caller of the function with the `with` statement
        status = StartStatus(text, time.monotonic(), limit_seconds, lambda: "" if ours else where(thread, outside))
        ended = Event()
        reporter = Thread(target=self._report, args=(status, ended), name="start reporter", daemon=True)
        reporter.start()
        if self._watchdog is not None:
            self._watchdog.start = status
        try:
            yield
        finally:
            if self._watchdog is not None:
                self._watchdog.start = None
            ended.set()
            reporter.join()

    def say(self, text: str) -> None:
        """Say a line at once."""
        self._say(printable(f"{self._prefix}{text}"))

    def _report(self, status: StartStatus, ended: Event) -> None:
        for seconds in chain(_SECONDS, repeat(_AGAIN_SECONDS)):
            if ended.wait(seconds):
                return
            at, took = status.where(), time.monotonic() - status.since
            self._say(printable(f"{self._prefix}still {status.step} ({took:.0f} s){f', at {at}' if at else ''}"))


def where(thread: int, outside: FrameType | None = None) -> str:
    """Return the file and line where a thread is in an author's code, within the calls that `outside` has made; "" if it is in none."""
    frame: FrameType | None = sys._current_frames().get(thread)  # noqa: SLF001  the documented way to see another thread's
    while frame is not None and frame is not outside:
        if is_author_code(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _print(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()

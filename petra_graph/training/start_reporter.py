"""What a start is busy with, said where one step of it takes long, with the line of code that runs.

A start runs code of other packages that no one has run in this network before: declarations, a data set's files, shapes, the
self-check. Where that hangs, a thread says so; in a run of several processes the watchdog fails the run after `run.watchdog`
where the self-check does, as it does for an operation of a stage.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from petra_graph.errors import printable
from petra_graph.kinds.author_code import is_author_code
from petra_graph.runtime.control.failure import StartStatus
from petra_graph.runtime.control.watchdog import Watchdog

_SAID_SECONDS = (5.0, 30.0)
"""The seconds after which a step is said, and said again; afterwards it is said every `_AGAIN_SECONDS`."""
_AGAIN_SECONDS = 60.0
_LOOK_SECONDS = 0.25
_OF_STEP = 3
"""The number of calls from the function with the `with` statement to the step itself."""


class StartReporter:
    """Says which step of a start takes long.

    Args:
        prefix: of what is said, such as the process's rank.
        watchdog: of this process, where the run has several.
        say: called with each line.
    """

    def __init__(
        self, prefix: str = "", watchdog: Watchdog | None = None, say: Callable[[str], None] | None = None
    ) -> None:
        self._prefix = prefix
        self._watchdog = watchdog
        self._say = say or _to_stderr
        self._step: StartStatus | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def step(self, text: str, limit_seconds: float = float("inf"), *, ours: bool = False) -> Iterator[None]:
        """Within the context, this thread is busy with what `text` says, as in "placing the stages".

        Args:
            text: of the step.
            limit_seconds: after which a watchdog fails the run.
            ours: whether the step runs this package's code: which line of a library it is at helps nobody.
        """
        thread = threading.get_ident()
        outside = _depth(sys._getframe()) - _OF_STEP  # noqa: SLF001  the calls around that of the context
        status = StartStatus(text, time.monotonic(), limit_seconds, lambda: "" if ours else where(thread, outside))
        self._show(status)
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="start reporter", daemon=True)
            self._thread.start()
        try:
            yield
        finally:
            self._show(None)

    def say(self, text: str) -> None:
        """Say a line at once."""
        self._say(printable(f"{self._prefix}{text}"))

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _show(self, status: StartStatus | None) -> None:
        self._step = status
        if self._watchdog is not None:
            self._watchdog.start = status

    def _look(self) -> None:
        said: tuple[StartStatus | None, float] = (None, 0.0)
        while not self._closing.wait(_LOOK_SECONDS):
            step = self._step
            if step is None:
                continue
            if step is not said[0]:
                said = (step, _SAID_SECONDS[0])
            seconds = time.monotonic() - step.since
            if seconds >= said[1]:
                at = step.where()
                self._say(printable(f"{self._prefix}still {step.step} ({seconds:.0f} s){f', at {at}' if at else ''}"))
                later = (again for again in _SAID_SECONDS if again > seconds)
                said = (step, next(later, seconds + _AGAIN_SECONDS))


def _depth(frame: FrameType | None) -> int:
    depth = 0
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def where(thread: int, outside: int = 0) -> str:
    """Return the file and line where a thread is, in an author's code; "" where it is not in any.

    Args:
        thread: its identifier.
        outside: how many of its outermost calls do not count.
    """
    frame: FrameType | None = sys._current_frames().get(thread)  # noqa: SLF001  the documented way to see another thread's
    with suppress(AttributeError):  # the thread runs on, and a frame that it has left may be another object by now
        for _ in range(_depth(frame) - outside):
            assert frame is not None
            file = frame.f_code.co_filename
            if is_author_code(file):
                return f"{file}:{frame.f_lineno}"
            frame = frame.f_back
    return ""

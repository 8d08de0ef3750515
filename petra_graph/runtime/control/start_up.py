"""A process before it has anything to lose: signals end it at once, and so does the end of its parent.

Imports take seconds, and an exception that a signal's handler raises in them may be swallowed. So until a run has a
directory, or a rank its watchdog, a request to stop ends the process where it is.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from threading import Event, Thread
from types import FrameType
from typing import NoReturn

REQUESTS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that ask a run to stop."""
_INTERRUPTED = 130
_LOOK_SECONDS = 0.25
LAUNCHER = "PETRA_GRAPH_LAUNCHER"
"""The environment variable with the launcher's process: it may end before a rank can look."""
PARENT = "PETRA_GRAPH_SWEEP"
"""The environment variable with the process of a sweep, of which this one is a run."""
_SIGNAL_AT_END_OF_PARENT = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""
_started = Event()
"""Set when this process watches its parent by other means."""


def end_at_signals() -> None:
    """End this process at a request to stop, until other handlers are installed; a signal that is ignored stays ignored."""
    for number in REQUESTS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)


def ignore_signals() -> None:
    """Ignore requests to stop: everything is written, and the exit code is known."""
    for number in REQUESTS:
        signal.signal(number, signal.SIG_IGN)


def end_with_parent() -> None:
    """End this process when its parent has ended, until `started`."""
    parent = int(os.environ.get(LAUNCHER, "") or os.getppid())

    def watch() -> None:
        while not _started.wait(_LOOK_SECONDS):
            if os.getppid() != parent:
                with suppress(OSError):
                    os.write(2, b"the process that started this one has ended\n")
                os._exit(1)

    Thread(target=watch, name="parent", daemon=True).start()


def stop_with_parent() -> None:
    """Have the system ask this process to stop when the process of its sweep has ended, however it ended."""
    import ctypes

    ctypes.CDLL(None).prctl(_SIGNAL_AT_END_OF_PARENT, signal.SIGTERM)
    if os.getppid() != int(os.environ.pop(PARENT)):
        os.kill(os.getpid(), signal.SIGTERM)


def started() -> None:
    """Watch the parent by other means from now on."""
    _started.set()


def hard_exit(code: int) -> NoReturn:
    """End this process now, whatever its threads wait for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end(_: int, __: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(_INTERRUPTED)

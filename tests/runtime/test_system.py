"""A signal asks, a second SIGINT insists; before anything is under way, a signal or the end of the parent ends a process at once."""

import os
import signal
import subprocess
import sys

import pytest

from petra_graph.runtime.system import REQUESTS, stop_requests


class Process:
    """Notes requests; insists by an exception."""

    def __init__(self):
        self.requests = []

    def handled(self, **options):
        return stop_requests(self.requests.append, self.insist, **options)

    def insist(self):
        raise KeyboardInterrupt


def test_signals_are_requests_and_a_second_sigint_insists():
    process = Process()
    with process.handled():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert process.requests == ["SIGTERM", "SIGINT", "SIGTERM"]


def test_a_process_that_ends_ignores_further_signals():
    before = {number: signal.getsignal(number) for number in REQUESTS}
    try:
        with Process().handled(ends_process=True):
            pass
        os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


STARTING = """
import os, signal, time
from petra_graph.runtime.system import at_end_of_parent, end_at_signals, stop_with_parent
{calls}
print("ready", flush=True)
while True:
    try:
        time.sleep(0.01)
    except BaseException:
        pass  # as an import may do
"""


def starting(calls, **variables):
    command = [sys.executable, "-c", STARTING.format(calls=calls)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=os.environ | variables, **pipes)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_though_exceptions_are_swallowed(number):
    process = starting("end_at_signals()")
    process.send_signal(number)
    try:
        assert process.communicate(timeout=30)[1] == "interrupted\n"
    finally:
        process.kill()
    assert process.returncode == 130

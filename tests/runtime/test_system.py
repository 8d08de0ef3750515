"""A signal asks, a second SIGINT insists; before anything is under way, a signal or the end of the parent ends a process at once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from petra_graph.runtime.system import REQUESTS, stop_requests
from tests.support.forks import until


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


PARENT = """
import os, time
from petra_graph.runtime.system import at_end_of_parent, end_at_signals, stop_with_parent
os.environ["PARENT"] = str(os.getpid())
for kept in (False, True):
    if os.fork() == 0:
        end_at_signals()
        stop_with_parent("PARENT")
        if kept:
            at_end_of_parent(0)
        with open(f"{path}{{kept}}", "w") as file:
            file.write(str(os.getpid()) + "\\n")
        break
time.sleep(60)
"""


def test_it_ends_with_its_parent_until_the_watchdog_looks(tmp_path):
    written = [Path(f"{tmp_path}/{kept}") for kept in (False, True)]
    parent = subprocess.Popen([sys.executable, "-c", PARENT.format(path=f"{tmp_path}/")], stdout=subprocess.DEVNULL)
    until(lambda: all(one.exists() and one.read_text().endswith("\n") for one in written))
    parent.kill()
    parent.wait()
    ends, stays = (int(one.read_text()) for one in written)
    until(lambda: not Path(f"/proc/{ends}/stat").exists(), 30)
    os.kill(stays, signal.SIGKILL)


@pytest.mark.parametrize(("variables", "ended"), [({}, "by Python\n"), ({"RANK": "0"}, "")])
def test_a_rank_that_has_failed_ends_without_waiting_for_its_threads(variables, ended):
    code = "import atexit, sys; from petra_graph.cli.main import main; atexit.register(print, 'by Python'); sys.exit(main())"
    words = [sys.executable, "-c", code, "no-such-verb"]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | variables, check=False)
    assert (done.returncode, done.stdout) == (2, ended)

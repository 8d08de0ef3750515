"""A signal asks, a second SIGINT insists; before anything is under way, a signal or the end of the parent ends a process at once."""

from __future__ import annotations

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
from petra_graph.runtime.system import end_at_signals, end_with_parent, started
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


STAYS = """
signal.signal(signal.SIGHUP, signal.SIG_IGN)
end_at_signals()
os.kill(os.getpid(), signal.SIGHUP)
end_with_parent(); started()
time.sleep(0.6)
"""


def test_under_nohup_it_goes_on_and_once_started_it_does_not_end_with_its_launcher():
    process = starting(STAYS, PETRA_GRAPH_LAUNCHER="1")
    assert process.poll() is None
    process.kill()
    process.communicate()


def test_it_ends_with_its_launcher():
    with subprocess.Popen(["true"]) as launcher:
        pass
    process = starting("end_with_parent()", PETRA_GRAPH_LAUNCHER=str(launcher.pid))
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert said == "the process that started this one has ended\n"


PARENT = """
import os, time
from petra_graph.runtime.system import end_with_parent
if os.fork() == 0:
    end_with_parent()
    with open({path!r}, "w") as file:
        file.write(str(os.getpid()) + "\\n")
time.sleep(60)
"""


def test_it_ends_with_its_parent(tmp_path):
    written = tmp_path / "process"
    parent = subprocess.Popen([sys.executable, "-c", PARENT.format(path=str(written))], stdout=subprocess.DEVNULL)
    until(lambda: written.exists() and written.read_text().endswith("\n"))
    parent.kill()
    parent.wait()
    process = int(written.read_text())
    until(lambda: not Path(f"/proc/{process}/stat").exists(), 30)


@pytest.mark.parametrize(("variables", "ended"), [({}, "by Python\n"), ({"RANK": "0"}, "")])
def test_a_rank_that_has_failed_ends_without_waiting_for_its_threads(variables, ended):
    code = "import atexit, sys; from petra_graph.cli.main import main; atexit.register(print, 'by Python'); sys.exit(main())"
    words = [sys.executable, "-c", code, "no-such-verb"]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | variables, check=False)
    assert (done.returncode, done.stdout) == (2, ended)

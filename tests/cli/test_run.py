"""`petra-graph run` as its caller sees it: exit codes, streams, Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import sys
import time

import pytest

from petra_graph.cli.main import main
from tests.support.runs import FILES, SPEC, UPDATES, files_of, only_run, summary_of

PATIENCE_SECONDS = 120
ENDLESS = SPEC.replace("epochs = 2", "epochs = 100000")
COMMAND = (sys.executable, "-m", "petra_graph", "run", "small.toml")


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


@pytest.fixture
def call(capsys):
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["run", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def without_figures(text: str) -> str:
    """The text with what differs between runs blanked out: rates, and the run directory's name."""
    text = re.sub(r"[\d,]+ samples/s", "# samples/s", text)
    text = re.sub(r"(loss|top\d) [\d.]+( %)?", r"\1 #", text)
    return re.sub(r"runs/\S+", "runs/#", text)


# --- streams ---------------------------------------------------------------------------------------------------------


def test_progress_goes_to_stderr_and_the_summary_to_stdout(spec, call):
    code, out, err = call(spec)
    assert code == 0
    assert without_figures(err) == (
        "small: 2,434 parameters in 4 stages; petra, 1f1b, accumulation 3; 2 epochs of 11 micro-batches of 128\n"
        "run directory: runs/#\n"
        "epoch 1/2   train loss # top1 # top5 #   test loss # top1 # top5 #   lr 0.05   # samples/s\n"
        "epoch 2/2   train loss # top1 # top5 #   test loss # top1 # top5 #   lr 0.05   # samples/s\n"
    )
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", err), "a log has no control characters"
    assert out.splitlines()[-1] == f"results: {only_run()}"


def test_json_is_all_that_stdout_gets(spec, call):
    code, out, _ = call(spec, "--json")
    assert code == 0
    assert json.loads(out) == summary_of(only_run())


def test_what_a_dry_run_says(spec, call, here):
    code, out, err = call(spec, "--dry-run", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["updates"] == 2 * UPDATES
    assert not (here / "runs").exists()


def test_a_spec_from_standard_input_with_a_byte_order_mark(here, call, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf" + SPEC.encode())))
    code, _, _ = call("-", "--set", "run.epochs=1")
    assert code == 0
    assert (only_run() / "spec.toml").read_text() == SPEC


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_ctrl_c_on_a_terminal(write):
    """A run with its bar, ended by the key itself, leaves the terminal as it was."""
    write("small.toml", ENDLESS)
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover  the other process
        # So wide that no line is wrapped, whatever throughput it ends with.
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": "200"}
        os.execv(COMMAND[0], COMMAND)
    written, pressed, end = b"", False, time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            written += os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if not pressed and written.count(b" samples/s\r\n") >= 2:
            os.write(terminal, b"\x03")
            pressed = True
    else:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    text = written.decode()
    assert os.waitstatus_to_exitcode(status) == 130, text
    assert "Traceback" not in text
    assert "small: interrupted" in text
    assert text.endswith(f"results: {only_run()}\r\n")
    assert files_of(only_run()) == FILES | {"checkpoints"}, "nothing is missing and nothing half-written"
    assert summary_of(only_run())["status"] == "interrupted"

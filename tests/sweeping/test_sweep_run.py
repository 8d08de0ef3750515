"""Sweeps as processes: what is killed in the middle continues, and every run has the bits of a single one."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from petra_graph.sweeping.sweep_folder import Sweep
from tests.support.forks import SPEC, alone, at_work_in, children, ended, start_server, until
from tests.support.runs import only_run, weights_bytes, without_times

# Long enough to be killed in the middle.
LONGER = SPEC.replace("epochs = 2", "epochs = 25") + "[checkpoint]\nevery = '4 epochs'\n"
TWELVE = (
    *("run", "shared.toml", "--sweep", "optimizer.options.lr=0.01,0.03", "--sweep", "method.name=petra,backprop"),
    *("--seeds", "3", "--at-once", "2"),
)

pytestmark = pytest.mark.processes


@pytest.fixture
def spec(here):
    start_server()
    (here / "shared.toml").write_text(LONGER)
    yield here
    assert at_work_in(here) == []


def sweep_of(folder="runs"):
    return Sweep.read(only_run(folder))


def statuses():
    return [member.status() for member in sweep_of().members]


def swept(*words):
    with alone(*words, ranks_fork=True) as process:
        code = ended([process])[0]
        return code, process.said


def until_with(process, condition):
    """Wait until something holds of the sweep that a process carries out."""

    def holds():
        assert process.code is None, process.said
        return list(Path("runs").glob("*/sweep.json")) and condition()

    until(holds)


@pytest.mark.slow
def test_twelve_runs_killed_in_the_middle_continue_with_the_bits_of_single_runs(spec):
    with alone(*TWELVE, ranks_fork=True) as process:
        until_with(process, lambda: statuses().count("done") >= 2)
        until_with(process, lambda: statuses().count("running") == 2)
        members = children(process.process.pid)
        assert len(members) == 2, "two at once"
        process.kill(signal.SIGSTOP)  # so that it does not see the other's end
        running = [member.directory for member in sweep_of().members if member.status() == "running"]
        until(lambda: all((directory / "checkpoints").exists() for directory in running))
        os.kill(members[0], signal.SIGKILL)
        process.kill()
        process.process.join()
    until(lambda: at_work_in(spec) == [])
    before = statuses()
    assert {"done", "waiting"} < set(before) <= {"done", "waiting", "killed", "interrupted"}, before
    assert "killed" in before
    done = {m.folder: m.directory.stat().st_mtime_ns for m in sweep_of().members if m.status() == "done"}
    code, said = swept("run", "--resume", str(sweep_of().folder), "--at-once", "2")
    assert code == 0, said
    assert statuses() == ["done"] * 12
    assert all(folder.exists() for folder in done)
    resumed = [json.loads((m.directory / "summary.json").read_text())["resumed_from"] for m in sweep_of().members]
    assert any(resumed)
    for member in sweep_of().members:
        words = [word for text in member.combination.overrides for word in ("--set", text)]
        single = f"single/{member.combination.folder}"
        given = [*words, "--set", f"run.directory={single}"]
        assert main(["run", "shared.toml", *given]) == 0
        assert weights_bytes(only_run(single)) == weights_bytes(member.directory), member.words
        assert without_times(only_run(single)) == without_times(member.directory), member.words

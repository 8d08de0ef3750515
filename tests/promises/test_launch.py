"""Launchers: `--processes`, and torchrun on two nodes; no process and no file is left, whichever is killed or interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from tests.support.forks import PATIENCE_SECONDS, RUN, alone, at_work_in, children, ended, free_port, under_way, until
from tests.support.processes import torchrun
from tests.support.runs import FILES, events, files_of, only_run, summary_of, weights_bytes

pytestmark = pytest.mark.processes
SHORT = ("--set", "run.epochs=3")
ARGUMENTS = (*RUN, *SHORT, "--set", "run.transport=process-group")
"""Everything between two processes goes through torch.distributed."""


def alone_in_one_process() -> bytes:
    assert main([*RUN, *SHORT, "--set", "run.directory=alone"]) == 0
    return weights_bytes(only_run("alone"))


@pytest.mark.slow
def test_processes_share_a_run(shared_folder):
    """One run directory, one display, one summary; and the bits of one process."""
    for name in ("click", "random"):  # a file in the current folder is not taken for a module of the program's
        (shared_folder / f"{name}.py").write_text("raise SystemExit('executed')\n")
    with alone(*RUN, "--processes", "2", *SHORT) as launcher:
        assert ended([launcher]) == [0]
    said = launcher.said
    assert said.count("917 parameters in 4 stages on 2 processes; ") == 1
    assert said.count("shared: done (epochs: 3, micro-batches: 24)") == 1
    assert files_of(only_run()) == FILES
    summary = summary_of(only_run())
    assert summary["processes"] == 2
    measured = summary["measured"]["processes"]
    assert [process["rank"] for process in measured] == [0, 1]
    assert [stage["stage"] for process in measured for stage in process["stages"]] == [1, 2, 3, 4]
    assert len([event for event in events(only_run()) if event["name"] == "test/loss"]) == 3
    assert weights_bytes(only_run()) == alone_in_one_process()


@pytest.mark.slow
def test_ctrl_c_at_the_launcher(shared_folder):
    with alone(*RUN, "--processes", "2") as launcher:
        until(under_way)
        launcher.kill(signal.SIGINT)
        assert ended([launcher]) == [130]
    assert "Traceback" not in launcher.said
    assert "shared: interrupted" in launcher.said
    assert files_of(only_run()) == FILES | {"checkpoints"}
    assert summary_of(only_run())["status"] == "interrupted"


def test_ctrl_c_twice_at_the_launcher(shared_folder):
    """The user insists: nothing is saved, and the run was interrupted and has not failed."""
    with alone(*RUN, "--processes", "2", "--set", "run.watchdog=60") as launcher:
        until(under_way)
        for worker in children(launcher.process.pid):
            os.kill(worker, signal.SIGSTOP)  # so that the first one does not end the run
        launcher.kill(signal.SIGINT)
        time.sleep(0.2)
        launcher.kill(signal.SIGINT)
        for worker in children(launcher.process.pid):
            os.kill(worker, signal.SIGCONT)
        assert ended([launcher]) == [130]
        until(lambda: not at_work_in(shared_folder), 30.0)
    assert "Traceback" not in launcher.said
    assert summary_of(only_run())["status"] == "interrupted"


def test_a_worker_of_the_launcher_is_killed(shared_folder):
    with alone(*RUN, "--processes", "2") as launcher:
        until(under_way)
        workers = children(launcher.process.pid)
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        assert ended([launcher]) == [1]
    assert "has gone without a word" in launcher.said
    assert "Traceback" not in launcher.said
    assert summary_of(only_run())["status"] == "failed"


def test_the_launcher_is_killed(shared_folder):
    """Its workers notice, and end by themselves."""
    with alone(*RUN, "--processes", "2") as launcher:
        until(under_way)
        launcher.kill()
        until(lambda: not at_work_in(shared_folder), 30.0)
    assert "the launcher has gone" in launcher.said or "the run's store at 127.0.0.1 has gone" in launcher.said
    assert summary_of(only_run())["status"] == "failed"


def share_a_run(agents: list[subprocess.Popen[str]]) -> None:
    expected = alone_in_one_process()
    end = time.monotonic() + PATIENCE_SECONDS
    said = [agent.communicate(timeout=max(1.0, end - time.monotonic())) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert sum("shared: done" in out for out, _ in said) == 1
    prints = re.compile(r"^rank \d of \d trains; rank \d on .+ prints the progress$", re.MULTILINE)
    assert sum(prints.search(err) is not None for _, err in said) == 1
    assert all(err for _, err in said), "a launcher whose processes say nothing seems to hang"
    assert weights_bytes(only_run()) == expected


@pytest.mark.slow
def test_two_nodes(shared_folder, request):
    """Each agent is in a network of its own, without loopback and shared memory; where that cannot be had, on the loopback."""
    try:
        nodes = request.getfixturevalue("namespaces").items()
    except pytest.skip.Exception:
        address = f"127.0.0.1:{free_port()}"
        share_a_run([torchrun(node, address, ARGUMENTS) for node in (0, 1)])
        return
    share_a_run(
        [
            torchrun(node, "10.77.0.1:29500", ARGUMENTS, "ip", "netns", "exec", name, GLOO_SOCKET_IFNAME=end)
            for node, (name, end) in enumerate(nodes)
        ]
    )


def test_a_specification_that_is_wrong_starts_nothing(shared_folder, capsys):
    assert main([*RUN, "--processes", "2", "--set", "run.sed=1"]) == 2
    assert "unknown key" in capsys.readouterr().err
    assert not Path("runs").exists()

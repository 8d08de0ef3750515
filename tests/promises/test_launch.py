"""Launchers: `--processes`, and torchrun on two nodes; no process and no file is left, whichever is killed or interrupted."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from tests.support.forks import (
    ENDLESS,
    RUN,
    alone,
    at_work_in,
    children,
    ended,
    free_port,
    under_way,
    until,
    wait_for_progress,
)
from tests.support.runs import FILES, events, files_of, only_run, summary_of, weights_bytes

pytestmark = pytest.mark.processes
SHORT = ("--set", "run.epochs=3")
PLANNED = {"plan.json", "timeline.json"}
"""Costs decide which process hosts which stages."""


def alone_in_one_process(*length: str) -> bytes:
    assert main([*RUN, *length, "--set", "run.directory=alone"]) == 0
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
    assert files_of(only_run()) == FILES | PLANNED
    summary = summary_of(only_run())
    assert summary["processes"] == 2
    measured = summary["measured"]["processes"]
    assert [process["rank"] for process in measured] == [0, 1]
    assert [stage["stage"] for process in measured for stage in process["stages"]] == [1, 2, 3, 4]
    assert len([event for event in events(only_run()) if event["name"] == "test/loss"]) == 3
    assert weights_bytes(only_run()) == alone_in_one_process(*SHORT)


@pytest.mark.slow
def test_ctrl_c_at_the_launcher(shared_folder):
    with alone(*RUN, "--processes", "2", ranks_fork=True) as launcher:
        until(under_way)
        launcher.kill(signal.SIGINT)
        assert ended([launcher]) == [130]
    assert "Traceback" not in launcher.said
    assert "shared: interrupted" in launcher.said
    assert files_of(only_run()) == FILES | PLANNED | {"checkpoints"}
    assert summary_of(only_run())["status"] == "interrupted"


def test_ctrl_c_twice_at_the_launcher(shared_folder):
    """The user insists: nothing is saved, and the run was interrupted and has not failed."""
    with alone(*RUN, "--processes", "2", "--set", "run.watchdog=60", ranks_fork=True) as launcher:
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
    with alone(*RUN, "--processes", "2", ranks_fork=True) as launcher:
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
    with alone(*RUN, "--processes", "2", ranks_fork=True) as launcher:
        until(under_way)
        launcher.kill()
        until(lambda: not at_work_in(shared_folder), 30.0)
    assert "the launcher has gone" in launcher.said or "the run's store at 127.0.0.1 has gone" in launcher.said
    assert summary_of(only_run())["status"] == "failed"


SLOWED = """
[[callback]]
name = "tests.support.slowed:Slowed"
"""
"""So that one process has soon computed what two have until a stranger has come."""


@pytest.fixture
def nodes(request):
    """An address to meet at, and of each node its network, with variables for its processes.

    Each network is without loopback and shared memory; where they cannot be had, both nodes are on the loopback.
    """
    try:
        networks = request.getfixturevalue("namespaces")
    except pytest.skip.Exception:
        return f"127.0.0.1:{free_port()}", [(None, {}), (None, {})]
    return "10.77.0.1:29500", [(name, {"GLOO_SOCKET_IFNAME": end}) for name, end in networks.items()]


def torchrun(node: int, address: str, network: str | None, **variables: str):
    """Start the agent of one of two nodes, with one process of the run."""
    host, _, port = address.partition(":")
    meeting = ("--nnodes", "2", "--node-rank", str(node), "--master-addr", host, "--master-port", port)
    return alone(
        *(*meeting, "--nproc-per-node", "1", "-m", "petra_graph", *RUN, "--set", "run.transport=process-group"),
        program="torch.distributed.run:main",
        ranks_fork=True,
        network=network,
        name=f"node{node}",
        **variables,
    )


@pytest.mark.slow
def test_two_nodes(shared_folder, nodes):
    """They share a run; resumed in one process, it has the bits of one."""
    address, places = nodes
    (shared_folder / "shared.toml").write_text(ENDLESS + SLOWED)
    one, other = (torchrun(node, address, network, **variables) for node, (network, variables) in enumerate(places))
    with one as first, other as second:
        until(under_way)
        wait_for_progress()
        assert (first.code, second.code) == (None, None), first.said + second.said
        assert first.process.pid is not None
        os.kill(children(first.process.pid)[0], signal.SIGINT)
        ended([first, second])
        said = [first.said, second.said]
    prints = re.compile(r"^rank \d of \d trains; rank \d on .+ prints the progress$", re.MULTILINE)
    assert sum(prints.search(text) is not None for text in said) == 1
    assert all(said), "a launcher whose processes say nothing seems to hang"
    assert "of its choice" not in "".join(said)
    summary = summary_of(only_run())
    assert (summary["status"], summary["processes"]) == ("interrupted", 2)
    whole = ("--set", f"run.epochs={summary['epochs'] + 1}", "--set", "callback=[]")
    assert main(["run", "--resume", "latest", *whole]) == 0
    assert weights_bytes(only_run()) == alone_in_one_process(*whole)


def test_a_specification_that_is_wrong_starts_nothing(shared_folder, capsys):
    assert main([*RUN, "--processes", "2", "--set", "run.sed=1"]) == 2
    assert "unknown key" in capsys.readouterr().err
    assert not Path("runs").exists()

"""Launchers: `--processes`, and torchrun on two nodes; no process and no file is left, whichever is killed or interrupted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from tests.support.forks import PATIENCE_SECONDS, RUN, alone, at_work_in, children, ended, free_port, under_way, until
from tests.support.processes import environment
from tests.support.runs import FILES, events, files_of, only_run, summary_of, weights_bytes

pytestmark = pytest.mark.processes
SHORT = ("--set", "run.epochs=3")


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
    assert summary_of(only_run())["processes"] == 2
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
    assert files_of(only_run()) == FILES
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


def torchrun(node: int, address: str, *before: str, **variables: str) -> subprocess.Popen[str]:
    """Start the agent of one of two nodes; everything between them goes through torch.distributed."""
    return subprocess.Popen(
        [
            *before,
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node)),
            *("--nproc-per-node", "1", "--master-addr", address.partition(":")[0]),
            *("--master-port", address.partition(":")[2], "-m", "petra_graph", *RUN, *SHORT),
            *("--set", "run.transport=process-group"),
        ],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def share_a_run(agents: list[subprocess.Popen[str]]) -> None:
    expected = alone_in_one_process()
    end = time.monotonic() + PATIENCE_SECONDS
    said = [agent.communicate(timeout=max(1.0, end - time.monotonic())) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert sum("shared: done" in out for out, _ in said) == 1
    assert weights_bytes(only_run()) == expected


@pytest.mark.slow
def test_two_nodes_on_the_loopback(shared_folder):
    address = f"127.0.0.1:{free_port()}"
    share_a_run([torchrun(node, address) for node in (0, 1)])


@pytest.fixture
def namespaces():
    """Two networks with a cable between them."""
    names = [f"petra{os.getpid()}-{node}" for node in (0, 1)]
    cable = [f"pg{os.getpid()}-{node}" for node in (0, 1)]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        ip("netns", "add", names[0])
        ip("netns", "add", names[1])
        ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
        for node, (name, end) in enumerate(zip(names, cable, strict=True), start=1):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"10.77.0.{node}/24", "dev", end)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", end, "up")
        yield dict(zip(names, cable, strict=True))
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("network namespaces need the rights of root, and `ip`")
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.mark.slow
def test_two_nodes_with_a_network_between_them(shared_folder, namespaces):
    """No loopback and no shared memory: each agent is in a network of its own."""
    share_a_run(
        [
            torchrun(node, "10.77.0.1:29500", "ip", "netns", "exec", name, GLOO_SOCKET_IFNAME=end)
            for node, (name, end) in enumerate(namespaces.items())
        ]
    )


def test_a_specification_that_is_wrong_starts_nothing(shared_folder, capsys):
    assert main([*RUN, "--processes", "2", "--set", "run.sed=1"]) == 2
    assert "unknown key" in capsys.readouterr().err
    assert not Path("runs").exists()

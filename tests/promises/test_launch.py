"""Launchers: `--processes`, and torchrun on two nodes; no process and no file is left, whichever is killed or interrupted."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
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
from tests.support.runs import FILES, events, files_of, only_run, overrides, summary_of, weights_bytes

pytestmark = pytest.mark.processes


def alone_in_one_process(*length: str) -> bytes:
    assert main([*RUN, *overrides(*length, "run.directory=alone")]) == 0
    return weights_bytes(only_run("alone"))


@pytest.mark.slow
def test_processes_share_a_run(shared_folder):
    """One run directory, one display, one summary; and the bits of one process. This launch is of interpreters of their own."""
    for name in ("click", "random"):  # a file in the current folder is not taken for a module of the program's
        (shared_folder / f"{name}.py").write_text("raise SystemExit('executed')\n")
    words = (sys.executable, "-P", "-m", "petra_graph", *RUN, "--processes", "2", "--set", "run.epochs=3")
    launcher = subprocess.run(words, capture_output=True, text=True, check=False)
    said = launcher.stdout + launcher.stderr
    assert launcher.returncode == 0, said
    assert said.count("917 parameters in 4 stages on 2 processes; ") == 1
    assert said.count("shared: done (epochs: 3, micro-batches: 24)") == 1
    assert files_of(only_run()) == FILES
    measured = summary_of(only_run())["measured"]["processes"]
    hosted = [(one["rank"], [stage["stage"] for stage in one["stages"]]) for one in measured]
    assert hosted == [(0, [1, 2]), (1, [3, 4])]
    assert len([event for event in events(only_run()) if event["name"] == "test/loss"]) == 3
    assert weights_bytes(only_run()) == alone_in_one_process("run.epochs=3")


COMPILED = (*RUN, "--set", "run.compile=true", "--set", "run.epochs=2")


def one_then_two(words: Sequence[str]) -> int:
    """Train in this process, and then in two that it forks: torch's compiler takes longer to import than to compile this."""
    return main([*words, "--set", "run.directory=one"]) or main(
        [*words, "--set", "run.directory=two", "--processes", "2"]
    )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="lacks a C++ compiler")
def test_blocks_that_inductor_has_compiled(shared_folder):
    with alone(*COMPILED, program=f"{__name__}:one_then_two") as both:
        # A machine that has compiled nothing yet also makes headers of its own.
        assert ended([both], 150) == [0], both.said
    assert summary_of(only_run("two"))["processes"] == 2
    assert weights_bytes(only_run("two")) == weights_bytes(only_run("one"))


# --- interrupted and killed ------------------------------------------------------------------------------------------

LISTEN = "0A"
LOOPBACK = {
    socket.inet_aton("127.0.0.1")[::-1].hex().upper(),
    "0000000000000000FFFF00000100007F",
    "00000000000000000000000001000000",
}


def listening_at(pids: list[int]) -> set[str]:
    """Return the addresses, in hex, at which processes listen."""
    inodes, found = set(), set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and fields[9] in inodes:
                found.add(fields[1].partition(":")[0])
    return found


def test_ctrl_c_at_a_launcher_to_which_no_other_machine_can_connect(shared_folder):
    """The launcher's store listens and, with this transport, gloo of each process."""
    with alone(*RUN, "--processes", "2", "--set", "run.transport=process-group") as launcher:
        until(under_way)
        found = listening_at([launcher.process.pid, *children(launcher.process.pid)])
        launcher.kill(signal.SIGINT)
        assert ended([launcher]) == [130]
    assert found, "the store listens at least"
    assert found <= LOOPBACK
    assert "Traceback" not in launcher.said
    assert "shared: interrupted" in launcher.said
    assert files_of(only_run()) == FILES | {"checkpoints"}
    assert summary_of(only_run())["status"] == "interrupted"


def test_workers_end_by_themselves_when_their_launcher_is_killed(shared_folder):
    with alone(*RUN, "--processes", "2") as launcher:
        until(under_way)
        launcher.kill()
        until(lambda: not at_work_in(shared_folder))
        assert ended([launcher]) == [-signal.SIGKILL]
    causes = ("the launcher has gone", "the run's store at 127.0.0.1 has gone")
    assert any(one in launcher.said for one in causes)
    assert "Traceback" not in launcher.said
    assert summary_of(only_run())["status"] == "failed"


# --- two nodes -------------------------------------------------------------------------------------------------------

SLOWED = """
import time
from petra_graph.plugins import Callback


class Slowed(Callback):
    def trained(self, epoch, done, means):
        time.sleep(0.02)
"""
"""So that one process has soon computed what two have until they are stopped."""


@pytest.mark.slow
def test_two_nodes(shared_folder):
    """torchrun's agents, each with one process, share a run; resumed in one process, it has the bits of one."""
    (shared_folder / "slowed.py").write_text(SLOWED)
    (shared_folder / "shared.toml").write_text(ENDLESS + '\n[[callback]]\nname = "slowed:Slowed"\n')
    meeting = f"--nnodes 2 --nproc-per-node 1 --master-addr 127.0.0.1 --master-port {free_port()}".split()
    run = ("-m", "petra_graph", *RUN, "--set", "run.transport=process-group")
    one, other = (
        alone(*(*meeting, "--node-rank", str(node), *run), program="torch.distributed.run:main", name=f"node{node}")
        for node in (0, 1)
    )
    with one as first, other as second:
        until(under_way)
        wait_for_progress()
        assert (first.code, second.code) == (None, None), first.said + second.said
        os.kill(children(first.process.pid)[0], signal.SIGINT)
        ended([first, second])
        assert "of its choice" not in first.said + second.said
    summary = summary_of(only_run())
    assert (summary["status"], summary["processes"]) == ("interrupted", 2)
    whole = (f"run.epochs={summary['epochs'] + 1}", "callback=[]")
    assert main(["run", "--resume", "latest", *overrides(*whole)]) == 0
    assert weights_bytes(only_run()) == alone_in_one_process(*whole)

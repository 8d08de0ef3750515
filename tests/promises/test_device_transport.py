"""Runs whose messages go from device to device, on processors, where gloo stands for NCCL."""

from __future__ import annotations

import signal

import pytest

from petra_graph.cli.main import main
from tests.support.forks import RUN, ended, ranks, under_way, until, wait_for_progress
from tests.support.runs import only_run, summary_of, weights_bytes, without_times

pytestmark = pytest.mark.processes
NCCL = ("--set", "run.transport=nccl")
LONG = ("--set", "run.epochs=30", "--set", "checkpoint.every=10 updates")


@pytest.mark.thorough
@pytest.mark.slow
def test_an_interrupted_run_continues(shared_folder):
    """With checkpoints on the way; the whole has the bits of one process."""
    with ranks(*[(*RUN, *LONG, *NCCL)] * 2) as running:
        wait_for_progress()
        running[1].kill(signal.SIGINT)
        assert set(ended(running)) == {130}, "".join(one.said for one in running)
    with ranks(*[("run", "--resume", "latest")] * 2) as running:
        assert ended(running) == [0, 0], "".join(one.said for one in running)
    assert len(summary_of(only_run())["resumed_from"]) == 1
    assert main([*RUN, *LONG, "--set", "run.directory=whole"]) == 0
    assert weights_bytes(only_run()) == weights_bytes(only_run("whole"))
    assert without_times(only_run()) == without_times(only_run("whole"))


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.thorough), 1])
def test_a_killed_process_is_named(shared_folder, victim):
    with ranks(*[(*RUN, *NCCL)] * 2) as running:
        until(under_way)
        running[victim].kill()
        assert ended(running)[1 - victim] == 1
    said = running[1 - victim].said
    assert f"rank {victim} (stages " in said
    assert " has gone without a word" in said
    assert "Traceback" not in said

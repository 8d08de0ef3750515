"""Runs whose messages go from device to device, on processors, where gloo stands for NCCL."""

from __future__ import annotations

import pytest

from tests.support.forks import RUN, ended, ranks, under_way, until

pytestmark = pytest.mark.processes
NCCL = ("--set", "run.transport=nccl")


@pytest.mark.parametrize("victim", [1])
def test_a_killed_process_is_named(shared_folder, victim):
    with ranks(*[(*RUN, *NCCL)] * 2) as running:
        until(under_way)
        running[victim].kill()
        assert ended(running)[1 - victim] == 1
    said = running[1 - victim].said
    assert f"rank {victim} (stages " in said
    assert " has gone without a word" in said
    assert "Traceback" not in said

"""What is started again, and from where; the processes themselves are in `tests/promises/test_resume_on_processes.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from petra_graph.training.processes import launch as launch_processes
from petra_graph.training.processes.launch import Ended
from tests.support.runs import SPEC


@pytest.mark.parametrize("checkpoints", [0, 1])
def test_a_run_that_is_started_again_has_one_directory(write, monkeypatch, checkpoints):
    """Without a checkpoint each attempt left one, the first with a failure that was none any more."""
    started: list[list[str]] = []

    def failing_once(arguments, *_):
        started.append(list(arguments))
        directory = Path("runs") / f"20260101T00000{len(started)}Z-small-1"
        if "--resume" not in arguments:
            for at in range(checkpoints):
                (directory / "checkpoints" / f"{at:012d}").mkdir(parents=True)
            directory.mkdir(parents=True, exist_ok=True)
        return Ended(int(len(started) == 1), directory.name, asked=False)

    monkeypatch.setattr(launch_processes, "launch", failing_once)
    launch_processes.run_on_processes(write("small.toml", SPEC), (), 2, (), {}, max_restarts=1)
    (directory,) = Path("runs").iterdir()
    assert started == [
        ["run", "small.toml"],
        ["run", "--resume", str(directory)] if checkpoints else ["run", "small.toml"],
    ]

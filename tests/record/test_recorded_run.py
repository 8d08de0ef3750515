"""A run's directory as readers find it: in every state, and damaged."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from petra_graph.errors import SpecError
from petra_graph.record import recorded_run as module
from petra_graph.record.recorded_run import read_run
from petra_graph.record.run_directory import is_locked, lock


def test_while_its_lock_is_held_it_is_running_whatever_an_earlier_summary_says(saved_run):
    held = lock(saved_run)
    try:
        assert read_run(saved_run).status == "running"
    finally:
        os.close(held)
    assert read_run(saved_run).status == "done"


def test_a_reader_stops_no_run_from_being_started(saved_run, monkeypatch):
    """It holds the lock for a moment, in which the run tries again."""
    import fcntl

    reader = os.open(saved_run, os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    assert not is_locked(saved_run), "two readers do not see each other"
    monkeypatch.setattr("petra_graph.record.run_directory.time.sleep", lambda _: fcntl.flock(reader, fcntl.LOCK_UN))
    os.close(lock(saved_run))
    os.close(reader)


def test_a_run_is_read_while_it_writes(saved_run):
    with (saved_run / "metrics.jsonl").open("a") as file:
        file.write('{"time": 1.0, "epo')
    assert read_run(saved_run).epochs == 2


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        ({}, ("test/top1", max, False)),
        ({"best": "test/loss"}, ("test/loss", min, True)),
        ({"best": "test/top5"}, ("test/top5", max, False)),
        ({"best": "test/top5", "best_is": "smallest"}, ("test/top5", min, True)),
    ],
)
def test_the_best_value(saved_run, checkpoint, expected):
    run = read_run(saved_run)
    run.resolved = {**run.resolved, "checkpoint": checkpoint}
    metric, which, smallest = expected
    value = which(point.value for point in run.metrics[metric])
    epoch = next(point.epoch for point in run.metrics[metric] if point.value == value)
    assert run.best == module.Best(metric=metric, value=value, epoch=epoch, smallest=smallest)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("summary.json", "{", r"summary\.json is damaged: Expecting property name"),
        ("summary.json", "[]", r"summary\.json is damaged: it holds a list"),
        ("resolved.toml", "a = ", r"resolved\.toml is damaged: Invalid value"),
        ("metrics.jsonl", '{"epoch": 1}\n', r'metrics\.jsonl:1: is not an event: \{"epoch": 1\}'),
        ("metrics.jsonl", None, r"is not a run's directory: it has no resolved\.toml and metrics\.jsonl"),
    ],
)
def test_a_damaged_directory(saved_run, name, text, message):
    (saved_run / name).unlink()
    if text is not None:
        (saved_run / name).write_text(text)
    with pytest.raises(SpecError, match=message) as caught:
        read_run(saved_run)
    assert all(problem.hint for problem in caught.value.problems)


FORKED = """
import os, sys, time
from pathlib import Path
from petra_graph.record.run_directory import lock

directory = Path(sys.argv[1])
held = lock(directory)
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
time.sleep(0.2)
os.close(held)
again = lock(directory)
os.kill(child, 9)
print("locked again")
"""


@pytest.mark.processes
def test_a_child_that_lives_longer_holds_no_lock(tmp_path):
    """Loaders of an interrupted run held it: the run could not go on in the same process."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("locked again\n", "")

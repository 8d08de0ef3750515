"""A run's directory: new each time, nothing in it half-written, and as readers find it in every state, and damaged."""

from __future__ import annotations

import fcntl
import json
import math
import os
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest
import torch

from petra_graph.errors import RunFailed, SpecError
from petra_graph.record.run_directory import (
    Metrics,
    began,
    environment,
    find_run,
    is_locked,
    locked,
    read_run,
    write_output,
    write_text,
    write_whole,
)
from petra_graph.record.weights import save_weights
from tests.support.runs import small_files


def half_then(error: BaseException):
    def write(temporary):
        temporary.write_text("half")
        raise error

    return write


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt()])
def test_any_other_end_leaves_the_old_file_and_no_temporary_too(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(type(error)):
        write_whole(path, half_then(error))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_all_files_have_the_permissions_of_the_umask(tmp_path):
    """Weights were 0600 and all else 0644: what safetensors writes is for its writer alone."""
    before = os.umask(0o027)
    try:
        save_weights(tmp_path / "weights.safetensors", {"a": torch.zeros(1)})
        write_text(tmp_path / "a.txt", "a")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}


# --- events, on a good disk and on a full one ---------------------------------------------------------------------------


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_is_not_finite_is_null(tmp_path):
    with Metrics(tmp_path) as made:
        made.record(epoch=1, step=1, values={"x": math.nan, "y": math.inf})
    assert [event["value"] for event in lines(tmp_path / "metrics.jsonl")] == [None, None]


def test_a_full_disk_leaves_whole_lines(tmp_path):
    """The line that no longer fitted was there by half, and no reader could read the file."""
    with Metrics(tmp_path) as made, pytest.raises(RunFailed) as caught, small_files(1000):
        deque(made.record(epoch=1, step=step, values={"x": 1.0}) for step in range(100))
    (problem,) = caught.value.problems
    assert problem.message == f"cannot write {tmp_path / 'metrics.jsonl'}: File too large"
    found = lines(tmp_path / "metrics.jsonl")
    assert len(found) > 5
    assert [event["step"] for event in found] == list(range(len(found)))


# --- read ---------------------------------------------------------------------------------------------------------------


def test_while_its_lock_is_held_it_is_running_whatever_an_earlier_summary_says(saved_run):
    with locked(saved_run):
        assert read_run(saved_run).status == "running"
    assert read_run(saved_run).status == "done"


def test_a_reader_stops_no_run_from_being_started(saved_run, monkeypatch):
    """It holds the lock for a moment, in which the run tries again."""
    reader = os.open(saved_run, os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    assert not is_locked(saved_run), "two readers do not see each other"
    monkeypatch.setattr("petra_graph.record.run_directory.time.sleep", lambda _: fcntl.flock(reader, fcntl.LOCK_UN))
    with locked(saved_run):
        os.close(reader)


def test_a_run_is_read_while_it_writes(saved_run):
    with (saved_run / "metrics.jsonl").open("a") as file:
        file.write('{"time": 1.0, "epo')
    assert read_run(saved_run).epochs == 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("summary.json", "{", r"summary\.json is damaged: Expecting property name"),
        ("summary.json", "[]", r"summary\.json is damaged: .* must be a mapping, not list"),
        ("resolved.toml", "a = ", r"is damaged: Invalid value"),
        ("metrics.jsonl", '{"epoch": 1}\n', r"metrics\.jsonl is damaged: 'value'"),
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
from petra_graph.record.run_directory import locked

directory = Path(sys.argv[1])
with locked(directory):
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    time.sleep(0.2)
with locked(directory):
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


# --- which directories are runs, and which of them is the latest --------------------------------------------------------


def test_which_run_is_the_latest(here):
    """The youngest one, whatever specifications it and the others are named after."""
    with pytest.raises(SpecError, match="there is no run in runs"):
        find_run("latest")
    (here / "runs" / "notes").mkdir(parents=True)
    for name in ("20260101T000000Z-z-1", "20260303T000000Z-c-3", "20260202T000000Z-a-2"):
        (here / "runs" / name).mkdir(parents=True)
    assert find_run("latest").name == "20260303T000000Z-c-3"
    assert f"{began(find_run('latest')):%Y-%m-%d}" == "2026-03-03"
    renamed = (here / "runs" / "20260101T000000Z-z-1").rename(here / "runs" / "best")
    (renamed / "metrics.jsonl").touch()  # now
    assert find_run("latest", here / "runs") == renamed
    with pytest.raises(SpecError, match="there is no run directory"):
        find_run("runs/none")


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("--set=callback.0.options.api_key=abc", "--set=callback.0.options.api_key=***"),
        ("callback.options.token=abc=d", "callback.options.token=***"),
        ('callback=[{name = "x", options = {"api_key" = "abc"}}]', 'callback=[{name = "x", options = {"api_key" = ***'),
        ("name=token", "name=token"),
    ],
)
def test_values_of_secrets_are_not_kept(word, kept, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["petra-graph", "run", "a.toml", "--set", word])
    assert environment()["command"][-1] == kept


def test_an_output_that_is_no_file_is_written_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_output(pipe, "text")
    assert os.read(reader, 9) == b"text"
    os.close(reader)
    assert pipe.is_fifo()

"""Events as lines that any program reads, on a good disk and on a full one."""

from __future__ import annotations

import json
import math
import shutil
from collections import deque
from pathlib import Path

import pytest

from petra_graph.errors import RunFailed
from petra_graph.record.metrics import Metrics
from tests.support.runs import small_files


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_an_event(tmp_path):
    with Metrics(tmp_path) as made:
        made.record(epoch=1, step=7, values={"train/loss": 0.5, "train/top1": 1})
    found = lines(tmp_path / "metrics.jsonl")
    assert [list(event) for event in found] == [["time", "epoch", "step", "name", "value"]] * 2
    assert [{key: event[key] for key in ("epoch", "step", "name", "value")} for event in found] == [
        {"epoch": 1, "step": 7, "name": "train/loss", "value": 0.5},
        {"epoch": 1, "step": 7, "name": "train/top1", "value": 1.0},
    ]
    assert all(isinstance(event["time"], float) for event in found)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null(tmp_path, value):
    with Metrics(tmp_path) as made:
        made.record(epoch=1, step=1, values={"x": value})
    assert lines(tmp_path / "metrics.jsonl")[0]["value"] is None


def test_a_full_disk_leaves_whole_lines(tmp_path):
    """The line that no longer fitted was there by half, and no reader could read the file."""
    made = Metrics(tmp_path)
    with pytest.raises(RunFailed) as caught, small_files(1000):
        deque(made.record(epoch=1, step=step, values={"x": 1.0}) for step in range(100))
    (problem,) = caught.value.problems
    assert problem.message == f"cannot write {tmp_path / 'metrics.jsonl'}: File too large"
    made.close()
    found = lines(tmp_path / "metrics.jsonl")
    assert len(found) > 5
    assert [event["step"] for event in found] == list(range(len(found)))


def test_a_file_that_is_removed_meanwhile(tmp_path):
    """The system takes what is written to it, and a run went on to its end."""
    (tmp_path / "run").mkdir()
    made = Metrics(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(RunFailed, match=f"cannot write {tmp_path}/run/metrics.jsonl: No such file or directory"):
        made.record(epoch=1, step=1, values={"x": 1.0})
    made.close()


class Called:
    """A callback's calls, of which one fails."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.seen = fails, list[str]()

    def __call__(self, method, **values):
        self.seen.append(f"{method} {values}" if values else method)
        if method == self.fails:
            raise KeyError("mine")


def test_every_callback_gets_every_event(tmp_path):
    first, second = Called(), Called()
    with Metrics(tmp_path) as made:
        made.hand_to(first)
        made.hand_to(second)
        made.record(epoch=2, step=9, values={"test/loss": 0.25, "test/top1": 1})
        assert len(lines(tmp_path / "metrics.jsonl")) == 2, "a line is there before any callback has it"
    recorded = "record {'epoch': 2, 'step': 9, 'values': {'test/loss': 0.25, 'test/top1': 1.0}}"
    assert first.seen == second.seen == [recorded, "close"]

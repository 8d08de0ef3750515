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


@pytest.mark.parametrize("value", [math.nan, math.inf])
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


def test_one_that_cannot_be_closed_keeps_no_other_open(tmp_path):
    first, second = Called(), Called("close")
    made = Metrics(tmp_path)
    made.hand_to(first)
    made.hand_to(second)
    with pytest.raises(KeyError, match="mine"):
        made.close()
    assert first.seen == ["close"]


def test_closing_does_not_hide_the_first_cause(tmp_path):
    def failed():
        with Metrics(tmp_path) as made:
            made.hand_to(Called("close"))
            raise RunFailed("the loss is nan")

    with pytest.raises(RunFailed, match="the loss is nan"):
        failed()

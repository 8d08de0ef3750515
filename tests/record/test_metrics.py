"""Events as lines that any program reads, on a good disk and on a full one."""

from __future__ import annotations

import json
import math
import shutil
import sys
import threading
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest

from petra_graph.errors import RunFailed
from petra_graph.record.metrics import JsonLines, Metrics, TensorBoard, probe_metric, quantity_and_stage
from tests.support.runs import small_files


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def no_tensorboard(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)


def test_a_line_an_event(tmp_path, no_tensorboard):
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
def test_what_is_not_finite_is_null(tmp_path, no_tensorboard, value):
    with Metrics(tmp_path) as made:
        made.record(epoch=1, step=1, values={"x": value})
    assert lines(tmp_path / "metrics.jsonl")[0]["value"] is None


def test_a_line_is_there_before_the_next_event(tmp_path):
    made = JsonLines(tmp_path / "m.jsonl")
    made.record(epoch=1, step=1, name="x", value=1.0)
    assert len(lines(tmp_path / "m.jsonl")) == 1
    made.close()


def test_lines_are_appended(tmp_path):
    for step in (1, 2):
        made = JsonLines(tmp_path / "m.jsonl")
        made.record(epoch=1, step=step, name="x", value=1.0)
        made.close()
    assert [event["step"] for event in lines(tmp_path / "m.jsonl")] == [1, 2]


def test_a_full_disk_leaves_whole_lines(tmp_path):
    """The line that no longer fitted was there by half, and no reader could read the file."""
    made = JsonLines(tmp_path / "m.jsonl")
    with pytest.raises(RunFailed) as caught, small_files(1000):
        deque(made.record(epoch=1, step=step, name="x", value=1.0) for step in range(100))
    (problem,) = caught.value.problems
    assert problem.message == f"cannot write {tmp_path / 'm.jsonl'}: File too large"
    assert problem.hint == "free space on that disk"
    made.close()
    found = lines(tmp_path / "m.jsonl")
    assert len(found) > 5
    assert [event["step"] for event in found] == list(range(len(found)))


def test_a_device_that_is_always_full():
    made = JsonLines(Path("/dev/full"))
    with pytest.raises(RunFailed, match="cannot write /dev/full: No space left on device"):
        made.record(epoch=1, step=1, name="x", value=1.0)
    made.close()


def with_writer(monkeypatch, writer):
    """Have TensorBoard's writer be `writer`."""
    module = SimpleNamespace(SummaryWriter=lambda log_dir: writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)


class FakeWriter:
    """A TensorBoard writer that fails in one of its calls."""

    def __init__(self, *, fails: str = "") -> None:
        self.fails = fails
        self.scalars: list[tuple[str, float, int]] = []
        self.closed = False

    def add_scalar(self, name, value, step):
        if self.fails == "add":
            raise OSError(28, "No space left on device")
        self.scalars.append((name, value, step))

    def close(self):
        self.closed = True
        if self.fails == "close":
            raise OSError(28, "No space left on device")


def test_every_sink_gets_every_event(tmp_path, monkeypatch):
    writer = FakeWriter()
    with_writer(monkeypatch, writer)
    with Metrics(tmp_path) as made:
        made.record(epoch=2, step=9, values={"test/loss": 0.25})
    assert writer.scalars == [("test/loss", 0.25, 9)]
    assert writer.closed
    assert len(lines(tmp_path / "metrics.jsonl")) == 1


@pytest.mark.parametrize("fails", ["add", "close"])
def test_a_full_disk_under_tensorboard(tmp_path, monkeypatch, fails):
    with_writer(monkeypatch, FakeWriter(fails=fails))
    with pytest.raises(RunFailed) as caught, Metrics(tmp_path) as made:
        made.record(epoch=1, step=1, values={"x": 1.0})
    assert str(caught.value).startswith(f"cannot write {tmp_path / 'tensorboard'}: No space left on device")


def test_closing_does_not_hide_the_first_cause(tmp_path, monkeypatch):
    with_writer(monkeypatch, FakeWriter(fails="close"))
    with pytest.raises(RunFailed, match="the loss is nan"), Metrics(tmp_path):
        raise RunFailed("the loss is nan")


def test_closing_twice_does_nothing(tmp_path):
    made = TensorBoard(FakeWriter(), tmp_path)
    made.close()
    both = Metrics(tmp_path)
    both.close()
    both.close()


def test_tensorboard_reads_what_was_recorded(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Metrics(tmp_path) as made:
        for step in (10, 20):
            made.record(epoch=1, step=step, values={"train/loss": step / 8})
    accumulator = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in accumulator.Scalars("train/loss")] == [(10, 1.25), (20, 2.5)]


def test_without_the_extra_there_are_no_tensorboard_events(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with Metrics(tmp_path) as made:
        made.record(epoch=1, step=1, values={"x": 1.0})
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_probes_metrics_are_read_as_they_are_written():
    assert probe_metric("reconstruction_error", 3) == "probe/reconstruction_error/stage-03"
    assert quantity_and_stage("probe/reconstruction_error/stage-03") == ("reconstruction_error", 3)
    assert quantity_and_stage(probe_metric("cosine_to_delayed", 103)) == ("cosine_to_delayed", 103)
    assert quantity_and_stage("probe/cosine_to_delayed/stage-03/x") is None
    assert quantity_and_stage("test/top1") is None


def test_a_directory_that_is_removed_meanwhile(tmp_path, monkeypatch):
    """A traceback of TensorBoard's thread and the hint "free space" were all that came of it."""
    directory = tmp_path / "run"
    directory.mkdir()
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    hook = threading.excepthook

    def recorded():
        with Metrics(directory) as metrics:
            shutil.rmtree(directory)
            for step in range(10):
                metrics.record(epoch=1, step=step, values={"train/loss": 1.0})

    with pytest.raises(RunFailed) as caught:
        recorded()
    (problem,) = caught.value.problems
    assert problem.message.startswith(f"cannot write {directory}/tensorboard: ")
    assert problem.hint == f"{directory} has been removed since"
    assert failed == []
    assert threading.excepthook is hook

"""TensorBoard's files: read back by TensorBoard, refused by a disk, cut back by a run that goes on."""

from __future__ import annotations

import itertools
import shutil
import threading
from types import SimpleNamespace

import pytest

from petra_graph.catalog.loggers import TensorBoard
from petra_graph.errors import RunFailed
from tests.support.loggers import started


def opened(directory, resumed_at=None):
    return started(TensorBoard(), directory, resumed_at)


def read(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(directory / "tensorboard")).Reload()
    return [(event.step, event.value) for event in accumulator.Scalars("train/loss")]


def test_it_reads_what_was_recorded(tmp_path):
    pytest.importorskip("tensorboard")
    logger = opened(tmp_path)
    for step in (10, 20):
        logger.record(epoch=1, step=step, values={"train/loss": step / 8})
    logger.close()
    assert read(tmp_path) == [(10, 1.25), (20, 2.5)]


def test_a_run_that_goes_on_forgets_the_later_events(tmp_path, monkeypatch):
    """Files are read in the order of their names, which begin with the second in which they were opened."""
    pytest.importorskip("tensorboard")
    seconds = SimpleNamespace(time=itertools.count(1.0e9).__next__)
    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.time", seconds)
    for resumed_at, steps in ((None, (10, 20)), (10, (20, 30))):
        logger = opened(tmp_path, resumed_at)
        for step in steps:
            logger.record(epoch=1, step=step, values={"train/loss": step / 8})
        logger.close()
    assert read(tmp_path) == [(10, 1.25), (20, 2.5), (30, 3.75)]


def test_a_directory_that_is_removed_meanwhile(tmp_path, monkeypatch):
    """A traceback of TensorBoard's thread and the hint "free space" were all that came of it."""
    pytest.importorskip("tensorboard")
    directory = tmp_path / "run"
    directory.mkdir()
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    hook = threading.excepthook
    logger = opened(directory)

    def recorded():
        shutil.rmtree(directory)
        for step in range(10):
            logger.record(epoch=1, step=step, values={"train/loss": 1.0})
        logger.close()

    with pytest.raises(RunFailed) as caught:
        recorded()
    (problem,) = caught.value.problems
    assert problem.message.startswith(f"cannot write {directory}/tensorboard: ")
    with pytest.raises(RunFailed):
        logger.close()
    assert failed == []
    assert threading.excepthook is hook

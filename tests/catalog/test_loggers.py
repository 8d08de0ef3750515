"""What TensorBoard reads from our files is what was recorded, also after a resume."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from petra_graph.catalog.callbacks import TensorBoard
from petra_graph.plugins import Started

RUN = dict.fromkeys(("epochs", "micro_batches", "batch", "accumulation", "stages", "parameters"), 1)


@pytest.mark.parametrize("resumed_at", [None, 10])
def test_tensorboard_reads_what_was_recorded_but_for_what_a_resumed_run_forgets(tmp_path, monkeypatch, resumed_at):
    """Files are read in the order of their names, which begin with the second in which they were opened."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seconds = SimpleNamespace(time=itertools.count(1.0e9).__next__)
    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.time", seconds)
    for at, steps in ((None, (10, 20)), (resumed_at, (20, 30))):
        logger = TensorBoard()
        logger.started(Started(name="run", directory=tmp_path, method="petra", schedule="1f1b", resumed_at=at, **RUN))
        for step in steps:
            logger.record(epoch=1, step=step, values={"train/loss": (step + len(steps) * (at or 0)) / 8})
        logger.close()
    scalars = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("train/loss")
    expected = [(10, 10), (20, 20), (20, 20), (30, 30)] if resumed_at is None else [(10, 10), (20, 40), (30, 50)]
    assert [(event.step, event.value) for event in scalars] == [(step, value / 8) for step, value in expected]

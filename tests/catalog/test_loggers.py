"""Files of values besides `metrics.jsonl`: read back, and those of a run that goes on."""

from __future__ import annotations

import csv
import itertools
import math
from types import SimpleNamespace

import pytest

from petra_graph.catalog.loggers import CsvFile, TensorBoard
from petra_graph.errors import RunFailed
from petra_graph.record.metrics import Metrics
from tests.support.loggers import started
from tests.support.runs import events, small_files


def test_the_rows_are_the_lines_of_the_run(tmp_path):
    with Metrics(tmp_path) as metrics:
        logger = started(CsvFile(), tmp_path)
        metrics.record(epoch=1, step=7, values={"train/loss": 0.1 + 0.2, "odd, name": math.nan})
        metrics.record(epoch=2, step=8, values={"train/loss": 1e-300})
        logger.close()
    with (tmp_path / "metrics.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    found = [[str(event[key]) for key in header] for event in events(tmp_path)]
    assert rows == [["" if cell == "None" else cell for cell in row] for row in found]
    assert rows[:2] == [["1", "7", "train/loss", "0.30000000000000004"], ["1", "7", "odd, name", ""]]
    with pytest.raises(RunFailed, match=r"cannot write .*metrics.csv: File too large"), small_files(20):
        logger.close()


@pytest.mark.parametrize("resumed_at", [None, 10])
def test_tensorboard_reads_what_was_recorded_but_for_what_a_resumed_run_forgets(tmp_path, monkeypatch, resumed_at):
    """Files are read in the order of their names, which begin with the second in which they were opened."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seconds = SimpleNamespace(time=itertools.count(1.0e9).__next__)
    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.time", seconds)
    for at, steps in ((None, (10, 20)), (resumed_at, (20, 30))):
        logger = started(TensorBoard(), tmp_path, at)
        for step in steps:
            logger.record(epoch=1, step=step, values={"train/loss": (step + len(steps) * (at or 0)) / 8})
        logger.close()
    scalars = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("train/loss")
    expected = [(10, 10), (20, 20), (20, 20), (30, 30)] if resumed_at is None else [(10, 10), (20, 40), (30, 50)]
    assert [(event.step, event.value) for event in scalars] == [(step, value / 8) for step, value in expected]

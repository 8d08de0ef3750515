"""Rows that are the lines of `metrics.jsonl`, also in a run that goes on and on a full disk."""

from __future__ import annotations

import csv
import math
from collections import deque

import pytest

from petra_graph.catalog.loggers import CsvFile
from petra_graph.errors import RunFailed
from petra_graph.record.metrics import Metrics
from tests.support.loggers import started
from tests.support.runs import events, small_files


def opened(directory, resumed_at=None):
    return started(CsvFile(), directory, resumed_at)


def hand_to(metrics, logger):
    metrics.hand_to(lambda method, **values: getattr(logger, method)(**values))


def rows(directory):
    with (directory / "metrics.csv").open(newline="") as file:
        return list(csv.reader(file))


def as_rows(directory):
    found = [[str(event[key]) for key in ("epoch", "step", "name", "value")] for event in events(directory)]
    return [["epoch", "step", "name", "value"], *(["" if cell == "None" else cell for cell in row] for row in found)]


def test_a_row_an_event(tmp_path):
    with Metrics(tmp_path) as metrics:
        hand_to(metrics, opened(tmp_path))
        metrics.record(epoch=1, step=7, values={"train/loss": 0.1 + 0.2, "odd, name": math.nan})
        assert rows(tmp_path) == as_rows(tmp_path)
        metrics.record(epoch=2, step=8, values={"train/loss": 1e-300})
    assert rows(tmp_path) == as_rows(tmp_path)
    assert rows(tmp_path)[1:3] == [["1", "7", "train/loss", "0.30000000000000004"], ["1", "7", "odd, name", ""]]


def test_a_run_that_goes_on_has_the_rows_of_the_lines_that_are_left(tmp_path):
    with Metrics(tmp_path) as metrics:
        hand_to(metrics, opened(tmp_path))
        for step in range(3):
            metrics.record(epoch=1, step=step, values={"x": step})
    kept = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)[:2]
    (tmp_path / "metrics.jsonl").write_text("".join(kept))
    opened(tmp_path, resumed_at=2).close()
    assert rows(tmp_path) == as_rows(tmp_path)
    assert len(rows(tmp_path)) == 3


def test_a_full_disk_leaves_whole_rows(tmp_path):
    with Metrics(tmp_path):
        pass
    logger = opened(tmp_path)
    with pytest.raises(RunFailed, match=r"cannot write .*metrics.csv: File too large"), small_files(1000):
        deque(logger.record(epoch=1, step=step, values={"x": 1.0}) for step in range(1000))
    logger.close()
    assert [row[1] for row in rows(tmp_path)[1:]] == [str(step) for step in range(len(rows(tmp_path)) - 1)]
    assert len(rows(tmp_path)) > 20

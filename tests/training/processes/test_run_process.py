"""A process that hosts all stages: what a failure finds of the run."""

from __future__ import annotations

import pytest

from petra_graph.errors import RunFailed
from petra_graph.training.prepare import prepare
from petra_graph.training.processes.one import RunProcess
from tests.support.runs import SPEC, summary_of


def test_an_error_before_there_is_a_directory_is_raised_as_it_is():
    error = RuntimeError("early")
    with pytest.raises(RuntimeError) as raised, RunProcess().control():
        raise error
    assert raised.value is error


def test_an_error_is_recorded_as_soon_as_there_is_one(write):
    process, prepared = RunProcess(), prepare(write("small.toml", SPEC))
    process.prepared, process.ranks = prepared, prepared.ranks
    process.open_directory(prepared, None)
    with pytest.raises(RunFailed, match="late"), process.control():
        raise RuntimeError("late")
    summary = summary_of(process.directory)
    assert (summary["status"], summary["micro_batches"]) == ("failed", 0)

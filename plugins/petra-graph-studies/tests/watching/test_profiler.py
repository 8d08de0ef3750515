"""A window of the profiler: the micro-batches that it has, and a run that ends within it."""

from __future__ import annotations

import json

import pytest

from petra_graph.errors import SpecError
from petra_graph.kinds.listener import Listener
from petra_graph.planning.check.check_spec import check_spec
from petra_graph.training.training_run import run
from tests.support.loggers import named
from tests.support.runs import SPEC, only_run
from tests.support.stopping import StopAt

PROFILED = SPEC + named("callback", "profiler")


def window(first, last):
    return f"callback.profiler.options={{ first = {first}, last = {last} }}"


def losses(directory):
    """Losses that were evaluated in the window: one a micro-batch."""
    trace = json.loads((directory / "trace.json").read_text())
    return sum(event.get("name") == "aten::cross_entropy_loss" for event in trace["traceEvents"])


@pytest.mark.parametrize(("first", "last"), [(1, 3), (4, 4), (9, 10)])
def test_the_window_has_its_micro_batches(write, first, last):
    run(write("small.toml", PROFILED), [window(first, last)], Listener())
    assert losses(only_run()) == last - first + 1


def test_a_run_that_ends_within_the_window(write):
    run(write("small.toml", PROFILED), [window(2, 1000)], StopAt("trained 1/4"))
    assert losses(only_run()) >= 3


def test_a_window_that_is_none(write):
    with pytest.raises(SpecError, match="last must be at least first"):
        check_spec(write("small.toml", PROFILED), [window(3, 2)])

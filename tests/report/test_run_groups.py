"""Groups of runs that differ in their seed alone, and each metric's spread in one."""

from __future__ import annotations

import pytest

from petra_graph.record.recorded_run import Point, read_run
from petra_graph.report.run_groups import LONGEST_NAME, group_runs


@pytest.fixture
def runs(saved_runs):
    return [read_run(saved_runs[name]) for name in ("probed", "first", "second")]


def by_name(runs):
    return {group.name: [run.seed for run in group.runs] for group in group_runs(runs)}


def with_optimizer(run, **options):
    changed(run, optimizer={"name": "sgd", "options": options})


def changed(run, **tables):
    run.resolved = {**run.resolved, **tables}


def test_runs_that_differ_in_their_seed_alone_are_a_group(runs):
    assert by_name(runs) == {"probed": [0], "small": [1, 2]}, "what differs is long"


def test_groups_are_named_by_what_differs_as_far_as_there_is_room(runs):
    _, first, second = runs
    with_optimizer(first, lr=0.1)
    with_optimizer(second, lr=0.2)
    assert set(by_name([first, second])) == {"lr=0.1", "lr=0.2"}
    changed(second, method={**second.resolved["method"], "name": "gpipe"})
    assert set(by_name([first, second])) == {"method=petra, lr=0.1", "method=gpipe, lr=0.2"}
    assert list(by_name([first])) == ["small"], "nothing differs from it"
    long = "x" * LONGEST_NAME
    changed(second, method={**first.resolved["method"], "name": long}, optimizer=first.resolved["optimizer"])
    assert sorted(name[:10] for name in by_name([first, second])) == ["1: method=", "2: method="]
    changed(second, name="another")
    assert set(by_name([first, second])) == {"small", "another"}


def test_the_best_group_is_first(saved_runs):
    for metric, order in (("test/top1", ["lr=0.2", "lr=0.1"]), ("test/loss", ["lr=0.1", "lr=0.2"])):
        runs = [read_run(saved_runs[name]) for name in ("first", "second")]
        for run, lr, value in zip(runs, (0.1, 0.2), (0.5, 0.75), strict=True):
            with_optimizer(run, lr=lr)
            run.metrics = {metric: [Point(epoch=1, step=1, value=value)]}
        assert list(by_name(runs)) == order


def test_the_spread_over_seeds(runs):
    group = group_runs(runs)[1]
    losses = [run.summary["test"]["loss"] for run in group.runs]
    spread = group.final("test/loss")
    assert spread.n == 2
    assert spread.mean == pytest.approx(sum(losses) / 2)
    assert spread.standard_deviation == pytest.approx(abs(losses[0] - losses[1]) / 2**0.5)
    assert group.judged_by == "test/top1"

"""Groups of runs that differ in their seed alone, and each metric's spread in one."""

from __future__ import annotations

import pytest
from petra_graph_report.run.run_groups import Spread, best_spread, differences, final_spread, group_runs, letter

from petra_graph.record.recorded_run import read_run


@pytest.fixture
def runs(saved_runs):
    return [read_run(saved_runs[name]) for name in ("probed", "first", "second")]


def test_runs_that_differ_in_their_seed_alone_are_a_group(runs):
    groups = group_runs(runs)
    assert [(group.name, [run.seed for run in group.runs]) for group in groups] == [("A", [0]), ("B", [1, 2])]


def test_another_key_makes_another_group(runs):
    _, first, second = runs
    second.resolved = {**second.resolved, "optimizer": {"name": "adam"}}
    assert len(group_runs([first, second])) == 2
    assert differences(group_runs([first, second]))["optimizer.name"] == ['"sgd"', '"adam"']


def with_optimizer(run, **options):
    run.resolved = {**run.resolved, "optimizer": {"name": "sgd", "options": options}}


def test_groups_are_named_by_what_differs_where_that_is_short(runs):
    _, first, second = runs
    with_optimizer(first, lr=0.1)
    with_optimizer(second, lr=0.2)
    assert [group.name for group in group_runs([first, second])] == ["lr=0.1", "lr=0.2"]
    second.resolved = {**second.resolved, "method": {**second.resolved["method"], "name": "gpipe"}}
    assert [group.name for group in group_runs([first, second])] == ["method=petra, lr=0.1", "method=gpipe, lr=0.2"]
    second.resolved = {**second.resolved, "method": {"name": "gpipe", "schedule": "fill-drain", "flush": "window"}}
    assert [group.name for group in group_runs([first, second])] == ["method=petra, lr=0.1", "method=gpipe, lr=0.2"]
    with_optimizer(second, lr=0.2, momentum=0.5, nesterov=False)
    assert [group.name for group in group_runs([first, second])] == ["A", "B"]
    assert [group.name for group in group_runs([first])] == ["A"], "nothing differs from it"
    second.resolved = {**first.resolved, "method": {**first.resolved["method"], "keep": {"rev.0": "input"}}}
    assert [group.name for group in group_runs([first, second])] == ["rev.0=-", "rev.0=input"]


def test_what_differs(runs):
    assert differences(group_runs(runs)) == {
        "method.schedule": ['"lockstep"', '"1f1b"'],
        "probe.per_epoch": ["2", "-"],
        "run.log_every": ["1", "4"],
    }


def test_the_spread_over_seeds(runs):
    group = group_runs(runs)[1]
    losses = [run.summary["test"]["loss"] for run in group.runs]
    spread = final_spread(group, "test/loss")
    assert (spread.n, spread.least, spread.largest) == (2, min(losses), max(losses))
    assert spread.mean == pytest.approx(sum(losses) / 2)
    assert spread.standard_deviation == pytest.approx(abs(losses[0] - losses[1]) / 2**0.5)
    assert best_spread(group)[0] == "test/top1"


def test_spreads_as_text():
    assert Spread.of([0.98, 0.99]).text("test/top1") == "98.50 ± 0.71 %\n98.00 to 99.00"
    assert Spread.of([2.0, 3.0]).text("test/loss") == "2.5 ± 0.71\n2 to 3"
    assert Spread.of([20_100.0, 22_200.0]).text("samples_per_second") == "21,150 ± 1,485\n20,100 to 22,200"
    assert Spread.of([0.98]).text("test/top1") == "98.00 %"


def test_letters():
    assert [letter(place) for place in (0, 25, 26, 52)] == ["A", "Z", "A2", "A3"]


def test_a_seed_that_was_run_twice_counts_once(runs):
    _, first, second = runs
    (group,) = group_runs([first, first, second])
    assert [run.seed for run in group.by_seed] == [1, 2]
    assert final_spread(group, "test/loss") == final_spread(group_runs([first, second])[0], "test/loss")

"""The metric against each key that was swept: lines over numbers, bars of names."""

from __future__ import annotations

import pytest
from petra_graph_report.run.recorded_run import Point, read_run
from petra_graph_report.run.run_curves import comparison_charts
from petra_graph_report.run.run_groups import group_runs
from petra_graph_report.run.runs_page import _groups, runs_page
from petra_graph_report.run.swept_keys import bars_of_names, charts_of_numbers

from tests.support.html_page import Page

VALUES = {("sgd", 0.1): (0.5, 0.7), ("sgd", 0.01): (0.9,), ("adam", 0.1): (0.4,), ("adam", 0.01): (0.8, 0.8)}


@pytest.fixture
def runs(saved_runs):
    """Two optimizers at two rates, with one seed or two."""
    made = []
    for (name, lr), values in VALUES.items():
        for seed, value in enumerate(values):
            run = read_run(saved_runs["first"])
            optimizer = {"name": name, "options": {"lr": lr}}
            run.resolved = {**run.resolved, "optimizer": optimizer, "run": {**run.resolved["run"], "seed": seed}}
            run.metrics = {"test/top1": [Point(epoch=1, step=1, value=value)]}
            made.append(run)
    return made


def test_numbers_are_an_axis_with_a_line_for_each_combination_of_the_others(runs):
    (chart,) = charts_of_numbers(group_runs(runs))
    assert (chart.title, chart.x_name, chart.x_at, chart.shares) == (
        "test/top1 by lr",
        "optimizer.options.lr",
        [0.01, 0.1],
        True,
    )
    assert {line.name: line.points for line in chart.lines} == {
        "optimizer=sgd": [(0.01, 0.9), (0.1, 0.6)],
        "optimizer=adam": [(0.01, 0.8), (0.1, 0.4)],
    }
    assert chart.lines[0].band == [(0.1, 0.5, 0.7)]
    assert {"0.01", "0.1"} <= {text.strip() for text in Page(chart.drawing).texts}


def test_a_name_is_a_bar_of_its_best_group(runs):
    (drawn,) = bars_of_names(group_runs(runs))
    assert [(bar.name, bar.total, bar.text) for bar in drawn.rows] == [
        ("sgd (lr=0.01)", 0.9, "90.00 %"),
        ("adam (lr=0.01)", 0.8, "80.00 ± 0.00 %"),
    ]
    assert (drawn.title, drawn.notes) == ("test/top1 by optimizer", "the best group of each optimizer")
    assert {"sgd (lr=0.01)", "90.00 %"} <= set(Page(drawn.drawing).texts)


def test_no_more_lines_than_one_can_tell_apart(runs):
    many = []
    for place in range(9):
        for run in runs[:2]:
            one = read_run(run.directory)
            one.resolved, one.metrics = {**run.resolved, "data": {**run.resolved["data"], "batch": place}}, run.metrics
            one.resolved["optimizer"] = {"name": "sgd", "options": {"lr": 0.1 * len(many)}}
            one.metrics = {"test/top1": [Point(epoch=1, step=1, value=place / 10)]}
            many.append(one)
    chart = next(chart for chart in charts_of_numbers(group_runs(many)) if chart.title.endswith("by lr"))
    assert [line.name for line in chart.lines] == [f"batch={place}" for place in (8, 7, 6, 5, 4, 3)]
    assert chart.note == "the 6 best of 9 lines"


def test_the_page_says_what_is_best_and_by_what(runs):
    page = Page(runs_page(runs))
    said = "".join(page.texts)
    assert "small: 6 runs over optimizer and lr" in page.texts
    assert "bestoptimizer=sgd, lr=0.01; test/top1 90.00 %; over 1 seed" in said
    assert (
        "nextoptimizer=adam, lr=0.01; test/top1 80.00 ± 0.00 %; 80.00 to 80.00; further apart than a standard deviation"
        in said
    )
    assert "chosen on the test set, so new samples will do worse" in said
    assert page.all("td", "left bold green") == [{"class": "left bold green"}]
    for run in runs:
        run.resolved = {**run.resolved, "checkpoint": {"best": "validation/loss", "best_is": "smallest"}}
        run.metrics = {"validation/loss": run.metrics["test/top1"]}
    said = "".join(Page(runs_page(runs)).texts)
    assert "bestoptimizer=adam, lr=0.1; validation/loss 0.4" in said
    assert "the smallest value of each run's evaluations; chosen on the validation samples" in said
    assert "new samples will do worse" not in said


def test_a_test_at_the_end_has_no_curve(runs):
    """Where a validation chooses, the test is evaluated once: a page of six runs had a chart of six points in one place."""
    assert [chart.title for chart in comparison_charts(group_runs(runs))] == ["test top1"]
    for run in runs:
        run.metrics = {**run.metrics, "validation/top1": [Point(epoch=at, step=at, value=0.5) for at in (1, 2)]}
    assert [chart.title for chart in comparison_charts(group_runs(runs))] == ["validation top1"]


def test_a_difference_that_may_be_chance_is_said_to_be(runs):
    said = "".join(Page(runs_page([runs[0], runs[1], runs[3]])).texts)
    assert "less apart than a standard deviation over the seeds: it may be chance" not in said
    runs[3].metrics = {"test/top1": [Point(epoch=1, step=1, value=0.59)]}
    said = "".join(Page(runs_page([runs[0], runs[1], runs[3]])).texts)
    assert "less apart than a standard deviation over the seeds: it may be chance" in said
    runs[3].metrics = {"test/top1": [Point(epoch=1, step=1, value=0.1)]}
    said = "".join(Page(runs_page([runs[0], runs[1], runs[3]])).texts)
    assert "further apart than a standard deviation over the seeds" in said
    said = "".join(Page(runs_page([runs[0], runs[3]])).texts)
    assert "a single seed does not say whether that is more than chance" in said


def test_two_seeds_are_too_few_to_rule_out_chance(runs):
    """A third of pairs of groups that are alike are further apart than their deviation, with two seeds each."""
    two = [
        run
        for run in runs
        if run.resolved["optimizer"]
        in ({"name": "sgd", "options": {"lr": 0.1}}, {"name": "adam", "options": {"lr": 0.01}})
    ]
    said = "".join(Page(runs_page(two)).texts)
    assert "further apart than a standard deviation over the seeds, of which two are too few to rule out chance" in said


def test_a_value_of_another_metric_is_not_in_the_column_of_this_one(runs):
    """A run that a validation had judged had its value in the column of the test."""
    for run in runs[:2]:
        run.metrics = {"validation/top1": [Point(epoch=1, step=1, value=0.99)]}
    best = _groups(group_runs(runs))[1]
    assert best.head == "best\ntest/\ntop1"
    assert not any("99.00" in (cell or "") for cell in best.cells)

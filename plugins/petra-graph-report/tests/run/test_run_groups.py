"""Groups of runs that differ in their seed alone, and each metric's spread in one."""

from __future__ import annotations

import json
import shutil

import pytest
from petra_graph_report.run.recorded_run import Point, read_run
from petra_graph_report.run.run_groups import (
    LONGEST_NAME,
    Spread,
    absent_members,
    best_spread,
    differences,
    final_spread,
    group_runs,
    spread_texts,
)
from petra_graph_report.run.runs_page import runs_page


@pytest.fixture
def runs(saved_runs):
    return [read_run(saved_runs[name]) for name in ("probed", "first", "second")]


def by_name(runs):
    return {group.name: [run.seed for run in group.runs] for group in group_runs(runs)}


def test_runs_that_differ_in_their_seed_alone_are_a_group(runs):
    assert by_name(runs) == {"schedule=lockstep, log_every=1": [0], "schedule=1f1b, log_every=4": [1, 2]}


def test_another_key_makes_another_group(runs):
    _, first, second = runs
    second.resolved = {**second.resolved, "optimizer": {"name": "adam"}}
    assert len(group_runs([first, second])) == 2
    assert differences(group_runs([first, second]))["optimizer.name"] in (['"sgd"', '"adam"'], ['"adam"', '"sgd"'])


def with_optimizer(run, **options):
    run.resolved = {**run.resolved, "optimizer": {"name": "sgd", "options": options}}


def changed(run, **tables):
    run.resolved = {**run.resolved, **tables}


def test_groups_are_named_by_what_differs_as_far_as_there_is_room(runs):
    _, first, second = runs
    with_optimizer(first, lr=0.1)
    with_optimizer(second, lr=0.2)
    assert set(by_name([first, second])) == {"lr=0.1", "lr=0.2"}
    changed(second, method={**second.resolved["method"], "name": "gpipe"})
    assert set(by_name([first, second])) == {"method=petra, lr=0.1", "method=gpipe, lr=0.2"}
    with_optimizer(second, lr=0.2, momentum=0.5, nesterov=False)
    assert set(by_name([first, second])) == {"method=petra, lr=0.1, momentum=-", "method=gpipe, lr=0.2, momentum=0.5"}
    assert list(by_name([first])) == ["small"], "nothing differs from it"
    long = "x" * LONGEST_NAME
    changed(second, method={**first.resolved["method"], "name": long}, optimizer=first.resolved["optimizer"])
    assert [name[:10] for name in by_name([first, second])] == ["1: method=", "2: method="]
    changed(second, name="another")
    assert set(by_name([first, second])) == {"small", "another"}


def test_what_follows_from_another_name_is_no_difference(runs):
    """The rows of two methods were A and B, told apart by schedule, reversible and buffered."""
    _, first, second = runs
    own = {"schedule": "sequential", "reversible": "graph", "buffered": "graph", "accumulation": 7}
    changed(second, method={**first.resolved["method"], "name": "backprop", **own})
    assert set(differences(group_runs([first, second]))) >= {"method.name", "method.accumulation"}
    assert not set(differences(group_runs([first, second]))) & {
        "method.schedule",
        "method.reversible",
        "method.buffered",
    }
    changed(second, method={**first.resolved["method"], "schedule": "lockstep"})
    assert set(differences(group_runs([first, second]))) == {"method.schedule"}
    changed(
        second,
        optimizer={"name": "adam", "options": {"lr": 0.5, "betas": [0.9, 0.99]}},
        method=first.resolved["method"],
    )
    with_optimizer(first, lr=0.1, momentum=0.9)
    assert set(differences(group_runs([first, second]))) == {"optimizer.name", "optimizer.options.lr"}


def test_two_schedules_of_two_methods_are_four_groups(runs):
    pairs = [(name, schedule) for name in ("petra", "dsp") for schedule in ("1f1b", "lockstep")]
    four = [read_run(runs[1].directory) for _ in pairs]
    for run, (name, schedule) in zip(four, pairs, strict=True):
        changed(run, method={**run.resolved["method"], "name": name, "schedule": schedule, "buffered": name})
    assert set(by_name(four)) == {f"method={name}, schedule={schedule}" for name, schedule in pairs}


def test_runs_of_a_sweep_differ_in_what_was_swept(saved_runs, tmp_path):
    """`partition.stages = 2` is a list of nodes in the resolved specification."""
    members = []
    for name, stages, seed in (("first", 2, 1), ("second", 3, 2)):
        folder = f"{stages}-{seed}"
        shutil.copytree(saved_runs[name], tmp_path / folder / "20260101T000000Z-small-a")
        members.append(
            {"folder": folder, "overrides": [f"partition.stages={stages}", "data.batch=4", f"run.seed={seed}"]}
        )
    (tmp_path / "sweep.json").write_text(json.dumps({"members": members}))
    runs = [read_run(tmp_path / one["folder"] / "20260101T000000Z-small-a") for one in members]
    assert not absent_members(runs)
    assert by_name(runs) == {"stages=2": [1], "stages=3": [2]}, "their resolved specifications are the same"
    waiting = [{"folder": f"4-{seed}", "overrides": [], "words": f"stages=4, seed={seed}"} for seed in range(8)]
    (tmp_path / "sweep.json").write_text(json.dumps({"members": members + waiting}))
    assert absent_members(runs)[:2] == ["stages=4, seed=0", "stages=4, seed=1"]
    assert "of the same sweep: stages=4, seed=0; stages=4, seed=1; " in (page := runs_page(runs))
    assert "; stages=4, seed=5; … 2 more" in page
    (tmp_path / "sweep.json").write_text("{")
    assert by_name(runs) == {"small": [1, 2]}


def test_the_best_group_is_first(runs):
    _, first, second = runs
    with_optimizer(first, lr=0.1)
    with_optimizer(second, lr=0.2)
    for run, value in ((first, 0.5), (second, 0.75)):
        run.metrics = {"test/top1": [Point(epoch=1, step=1, value=value)]}
    assert list(by_name([first, second])) == ["lr=0.2", "lr=0.1"]
    for run, value in ((first, 0.5), (second, 0.75)):
        run.metrics = {"test/loss": [Point(epoch=1, step=1, value=value)]}
    assert list(by_name([first, second])) == ["lr=0.1", "lr=0.2"]
    first.metrics = {}
    assert list(by_name([first, second])) == ["lr=0.2", "lr=0.1"], "one without a value is the last"


def test_the_spread_over_seeds(runs):
    group = group_runs(runs)[1]
    losses = [run.summary["test"]["loss"] for run in group.runs]
    spread = final_spread(group, "test/loss")
    assert (spread.n, spread.least, spread.largest) == (2, min(losses), max(losses))
    assert spread.mean == pytest.approx(sum(losses) / 2)
    assert spread.standard_deviation == pytest.approx(abs(losses[0] - losses[1]) / 2**0.5)
    assert best_spread(group)[0] == "test/top1"


def test_spreads_have_equal_digits():
    shares = [Spread.of([0.98, 0.99]), None, Spread.of([0.5, 0.9])]
    assert spread_texts(shares, "test/top1") == [
        "98.50 ± 0.71 %\n98.00 to 99.00",
        None,
        "70.00 ± 28.28 %\n50.00 to 90.00",
    ]
    losses = [Spread.of([2.0, 3.0]), Spread.of([0.1, 0.12])]
    assert spread_texts(losses, "test/loss") == ["2.500 ± 0.707\n2.000 to 3.000", "0.110 ± 0.014\n0.100 to 0.120"]
    assert spread_texts([Spread.of([20_100.0, 22_200.0])], "") == ["21,150 ± 1,485\n20,100 to 22,200"]
    assert spread_texts([Spread.of([0.98])], "test/top1") == ["98.00 %"]
    assert spread_texts([Spread.of([0.0, 0.0])], "test/loss") == ["0.00 ± 0.00\n0.00 to 0.00"]


def test_a_seed_that_was_run_twice_counts_once(runs):
    _, first, second = runs
    (group,) = group_runs([first, first, second])
    assert [run.seed for run in group.by_seed] == [1, 2]
    assert final_spread(group, "test/loss") == final_spread(group_runs([first, second])[0], "test/loss")

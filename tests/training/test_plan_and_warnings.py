"""The plan of a run, which it was given or which costs have decided, and what it warns of before it trains."""

from __future__ import annotations

import json
import os

import pytest

from petra_graph.planning import plan_spec
from petra_graph.training import run_record
from petra_graph.training.prepare import prepare
from petra_graph.training.run import run
from petra_graph.training.run_record import start_warnings
from tests.support.runs import SPEC, FakeListener, only_run, summary_of, weights_bytes

ONE = ("run.epochs=1", "run.micro_batches=2", "run.evaluation_batches=1")
OPEN = ("partition.stages=2", "partition.stages=auto", "method.schedule=auto", 'partition.memory="1GiB"')


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


def test_a_run_in_which_nothing_is_open_measures_no_costs_and_has_no_plan(spec, monkeypatch):
    """A plan that no training read was 85 % of the calls before the first forward."""
    from petra_graph.planning.network import MeasuredNetwork

    monkeypatch.setattr(MeasuredNetwork, "costs", lambda _: pytest.fail("measured"))
    summary = run(spec, ONE, FakeListener()).summary
    assert summary["predicted"] is None
    assert "planned_and_measured" not in summary
    assert not (only_run() / "plan.json").exists()


@pytest.mark.parametrize("key", OPEN)
def test_a_placement_that_costs_decide_is_planned(spec, key):
    summary = run(spec, [*ONE, key], FakeListener()).summary
    plan = json.loads((only_run() / "plan.json").read_text())
    assert len(plan["stages"]) == summary["stages"] == len(summary["planned_and_measured"]["stages"])
    assert summary["predicted"] == {
        "samples_per_second": round(plan["timing"]["samples_per_second"], 1),
        "expected_samples_per_second": [
            round(plan["certainty"][f"samples_per_second_{end}"], 1) for end in ("low", "high")
        ],
        "memory_bytes": plan["totals"]["bytes"]["total"],
        "from": "data sheet",
    }


def test_planning_does_not_change_a_run_s_bits(spec, monkeypatch):
    run(spec, [*ONE, *OPEN[:1], "run.directory=with"], FakeListener())
    monkeypatch.setattr(run_record.RunRecord, "_write_plan", lambda *_: None)
    run(spec, [*ONE, *OPEN[:1], "run.directory=without"], FakeListener())
    assert weights_bytes(only_run("with")) == weights_bytes(only_run("without"))


def test_a_resumed_run_keeps_its_plan(spec, monkeypatch):
    run(spec, [*ONE, *OPEN[:1], "checkpoint.every=1 updates"], FakeListener())
    before = (only_run() / "plan.json").read_bytes()
    monkeypatch.setattr(plan_spec, "predict", lambda *_, **__: pytest.fail("planned"))
    run(str(only_run() / "resolved.toml"), ["run.epochs=2"], FakeListener(), only_run())
    assert (only_run() / "plan.json").read_bytes() == before
    assert summary_of(only_run())["planned_and_measured"]


@pytest.mark.parametrize(
    ("cores", "threads", "said"),
    [
        (2, 1, ["4 processes on this machine need 4 cores for the speed of the plan, but it has 2"]),
        (4, 2, ["4 processes on this machine need 8 cores for the speed of the plan, but it has 4"]),
        (4, 1, []),
    ],
)
def test_processes_that_share_cores_are_slower_than_the_plan(write, monkeypatch, cores, threads, said):
    prepared = prepare(write("small.toml", SPEC), [f"run.threads={threads}"], processes=4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert list(start_warnings(prepared, 4)) == said
    assert list(start_warnings(prepared, 1)) == []
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert bool(list(start_warnings(prepared, 4))) == (2 * threads > cores)


def test_devices_that_are_not_here(write):
    """A spec that is planned for a cluster is tried on a laptop, and its run says that it is no run of that plan."""
    said = "partition.devices is 2, but only cpu is here: it runs all stages; --processes 2 starts a process for each"
    assert list(start_warnings(prepare(write("small.toml", SPEC), ["partition.devices=2"]), 1)) == [said]

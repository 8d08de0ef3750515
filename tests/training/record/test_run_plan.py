"""The plan of a run: whatever happens to it, the training goes on."""

from __future__ import annotations

import json
import time

import pytest
from attrs import evolve

from petra_graph.errors import RunFailed
from petra_graph.planning.plan_spec import plan
from petra_graph.training.record import run_plan, run_record
from petra_graph.training.training_run import run
from tests.support.runs import SPEC, FakeListener, only_run, summary_of, weights_bytes

ONE = ("run.epochs=1", "run.micro_batches=2", "run.evaluation_batches=1")


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), RunFailed("no space left"), MemoryError()])
def test_a_plan_that_fails_is_a_warning(spec, monkeypatch, error):
    """A fault in a prediction ended the run before its first micro-batch: only SpecError was expected.

    Any failure is a warning at its beginning, and the reason is in its summary.
    """

    def fails(*_):
        raise error

    monkeypatch.setattr(run_plan, "predict", fails)
    listener = FakeListener()
    assert run(spec, ONE, listener).summary["status"] == "done"
    (reason,) = summary_of(only_run())["predicted"]["not planned"]
    assert str(error) in reason
    assert listener.run.warnings[-1] == f"the run is not planned: {reason}"
    assert not (only_run() / "plan.json").exists()


def test_a_plan_that_cannot_be_shown_is_a_warning(spec, monkeypatch):
    monkeypatch.setattr(run_plan, "ticks_once_full", lambda *_: 1 / 0)
    assert run(spec, ONE, FakeListener()).summary["predicted"] == {
        "not planned": ["ZeroDivisionError: division by zero"]
    }


def test_many_stages_do_not_hold_up_the_training(spec, monkeypatch):
    """The memory of a thousand stages was predicted for three minutes before the first of them was built.

    Another process predicts them beside the training, and ends with it; the bits are the same.
    """
    run(spec, [*ONE, "run.directory=before"], FakeListener())
    monkeypatch.setattr(run_record, "MOST_STAGES", 1)
    monkeypatch.setattr(run_plan, "predict", lambda *_: pytest.fail("predicted in the way of the training"))
    listener = FakeListener()
    summary = run(spec, [*ONE, "run.directory=beside"], listener).summary
    assert "the plan of 4 stages is computed while the training runs" in listener.run.notes
    (reason,) = summary["predicted"]["not planned"]
    assert "was not ready when the run ended" in reason
    assert "resolved.toml` makes it" in reason
    assert weights_bytes(only_run("before")) == weights_bytes(only_run("beside"))


def test_a_plan_beside_the_training_is_the_same(spec, monkeypatch):
    run(spec, ONE, FakeListener())
    directory = only_run()
    before = json.loads((directory / "plan.json").read_text())
    (directory / "plan.json").unlink()
    made = plan(spec).prediction
    network = evolve(plan(spec).network, training_samples=1438)
    late = run_plan.LatePlan.begin(directory, network, made.placement, ["."])
    assert late._process.wait(120) == 0
    assert json.loads((directory / "plan.json").read_text()) == before
    assert late.figures() == run_plan.figures_of(before, network.spec) == summary_of(directory)["predicted"]


def test_a_planning_process_that_fails_says_why(spec, monkeypatch, here):
    monkeypatch.setattr(run_plan, "_MODULE", "no_such_module")
    made = plan(spec)
    late = run_plan.LatePlan.begin(here, made.network, made.prediction.placement, ["."])
    deadline = time.monotonic() + 60
    while late._process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    (reason,) = late.figures()["not planned"]
    assert "no_such_module" in reason
    assert late.figures()["not planned"] == [reason]

"""Delays that cost accuracy, and keys that change nothing: `plan`, `run --dry-run` and `run` say so alike, and go on."""

from __future__ import annotations

import json

import pytest

from petra_graph.cli.main import main
from tests.support.runs import FakeListener
from tests.support.specs import SPEC

LATE = (
    "gradients reach the first stage {late} updates late, and no node has batch normalisation: delay hurts such networks most; {remedy}. "
    "To reduce the delay: {keys}"
)
REMEDY = (
    "a GPT of six stages, the first one 5 updates late, ended at 2.16 nats with adamw, at 1.81 with predict = true of petra-graph-studies' optimizer corrected and "
    "lr_schedule.delay_epochs = 1 of 4 epochs, and at 1.65 with muon; without delay, adamw ended at 1.74 (tools/README.md): "
    'set optimizer.name = "muon"'
)
LOCKSTEP = LATE.format(
    late="2",
    remedy=REMEDY,
    keys='method.schedule = "1f1b" (half of it) or "auto"; partition.stages = 2; method.accumulation = 4 (with fewer updates an epoch)',
)


@pytest.fixture
def said(write, capsys):
    """Return the warnings of a dry run of a specification; those of its plan begin with them."""

    def said(text: str, *arguments: str) -> list[str]:
        write("a.toml", text)
        assert main(["run", "a.toml", "--dry-run", *arguments]) == 0
        printed = capsys.readouterr().err
        assert main(["run", "a.toml", "--dry-run", "--json", *arguments]) == 0
        warnings = json.loads(capsys.readouterr().out)["warnings"]
        assert printed == "".join(f"warning: {text}\n" for text in warnings)
        assert main(["plan", "a.toml", "--json", *arguments]) == 0
        planned = json.loads(capsys.readouterr().out)["warnings"]
        assert planned[: len(warnings)] == warnings
        return warnings

    return said


EXACT = SPEC.replace('"lockstep"', '"sequential"')


def test_there_is_nothing_to_say_to_begin_with(said):
    assert said(EXACT) == []


def test_late_gradients_without_batch_normalisation(said):
    assert said(SPEC) == [LOCKSTEP]
    adamw = LATE.format(
        late="2",
        remedy=REMEDY,
        keys="partition.stages = 2; method.accumulation = 2 (with fewer updates an epoch)",
    )
    assert said(
        SPEC, "--set", "optimizer.name=adamw", "--set", "method.schedule=1f1b", "--set", "method.accumulation=1"
    ) == [adamw]
    for name in ("muon", "soap"):
        known = LOCKSTEP.replace(REMEDY, f"{name} suffers little from it")
        assert said(SPEC, "--set", f"optimizer.name={name}") == [known]


@pytest.mark.parametrize(
    "change",
    [
        ("method.accumulation=4",),
        ("method.accumulation=2", "method.schedule=1f1b"),
        ("method.name=gpipe",),
        ("partition.stages=2",),
    ],
)
def test_gradients_that_are_an_update_late_or_less(said, change):
    assert said(SPEC, *(word for text in change for word in ("--set", text))) == []


def test_late_gradients_with_batch_normalisation(said):
    """They cost a residual network nothing, at twelve updates."""
    text = SPEC.replace('"linear-stem"\noptions = { features = 16 }', '"conv-stem"\noptions = { channels = 4 }')
    assert said(text.replace('"rev-mlp"', '"rev-basic"').replace("options = { hidden = 16 }\n", "")) == []


def test_a_run_says_it_with_a_plan_and_without(write):
    from petra_graph.planning.place.saved_plan import SavedPlan
    from petra_graph.planning.plan_spec import plan
    from petra_graph.training.run import run

    write("a.toml", SPEC)
    for saved in (None, SavedPlan(plan("a.toml").document(with_timeline=False), "a plan")):
        listener = FakeListener()
        run("a.toml", ("run.micro_batches=2", "run.evaluation_batches=1"), listener, saved=saved)
        assert LOCKSTEP in listener.run.warnings


@pytest.mark.parametrize(("warmup", "warned"), [(0.5, False), (3, True), (4, True)])
def test_a_warm_up_as_long_as_the_run(said, warmup, warned):
    expected = f"the warm-up of {warmup} epochs takes all of the run's 3 epochs: set lr_schedule.warmup_epochs lower, or run.epochs higher"
    assert said(f"{EXACT}\n[lr_schedule]\nwarmup_epochs = {warmup}\n[run]\nepochs = 3\n") == [expected] * warned

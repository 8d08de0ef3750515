"""Delay that costs accuracy: `plan`, `run --dry-run` and `run` say so alike, once and in one sentence, and go on."""

from __future__ import annotations

import json

import pytest

from petra_graph.cli.main import main
from tests.support.runs import FakeListener
from tests.support.specs import SPEC

LATE = SPEC.replace("accumulation = 2", "accumulation = 1").replace('kind = "reversible"', "repeat = 2")
SAID = "gradients reach stage 1 {} updates late, which can cost accuracy ({}; without delay, at {}): {}method.accumulation = {} makes it 2 updates or less"
SGD = "a RevNet, nine updates late, ended at 81.94 % with SGD", "82.92 %"
ADAMW = "a small GPT, five updates late, ended at 2.16 nats with AdamW", "1.74"
MUON = "a small GPT, five updates late, ended at 1.65 nats with Muon", "1.62"
LOCKSTEP = SAID.format(6, *SGD, 'method.schedule = "1f1b" halves the delay, ', 3)


@pytest.fixture
def said(write, capsys):
    """Return the warnings of a dry run of a specification; its plan has them too."""

    def said(*settings: str) -> list[str]:
        write("a.toml", LATE)
        arguments = [word for text in settings for word in ("--set", text)]
        assert main(["run", "a.toml", "--dry-run", "--json", *arguments]) == 0
        warnings = json.loads(capsys.readouterr().out)["warnings"]
        assert main(["plan", "a.toml", "--json", *arguments]) == 0
        planned = json.loads(capsys.readouterr().out)["warnings"]
        assert set(warnings) <= set(planned)
        return warnings

    return said


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], [LOCKSTEP]),
        (["method.schedule=1f1b"], [SAID.format(3, *SGD, "", 2)]),
        (["method.schedule=1f1b", "optimizer.name=adamw"], [SAID.format(3, *ADAMW, "", 2)]),
        (["method.schedule=1f1b", "optimizer.name=soap"], [SAID.format(3, *MUON, "", 2)]),
        (["method.accumulation=3"], []),
        (["method.name=gpipe"], []),
        (["partition.stages=2"], []),
        # It corrects the delay.
        (["optimizer={ name = 'corrected', options = { optimizer = 'sgd', lr = 0.1, predict = true } }"], []),
    ],
)
def test_gradients_that_are_more_than_two_updates_late(said, settings, expected):
    assert said(*settings) == expected


def test_a_run_says_it_with_a_plan_and_without(write):
    from petra_graph.planning.plan_spec import plan
    from petra_graph.planning.saved_plan import SavedPlan
    from petra_graph.training.run import run

    write("a.toml", LATE)
    for saved in (None, SavedPlan(plan("a.toml").document(with_timeline=False), "a plan")):
        listener = FakeListener()
        run("a.toml", ("run.micro_batches=2", "run.evaluation_batches=1"), listener, saved=saved)
        assert listener.run.warnings.count(LOCKSTEP) == 1

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
    "a GPT of six stages, the first one 5 updates late, ended at 2.19 nats with adamw, at 1.75 with optimizer.delay.predict = true and "
    "lr_schedule.delay_epochs = 1 of 4 epochs, and at 1.62 with muon; without delay, adamw ended at 1.70 (tools/README.md): "
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
    from petra_graph.training.training_run import run

    write("a.toml", SPEC)
    for saved in (None, SavedPlan(plan("a.toml").document(with_timeline=False), "a plan")):
        listener = FakeListener()
        run("a.toml", ("run.micro_batches=2", "run.evaluation_batches=1"), listener, saved=saved)
        assert LOCKSTEP in listener.run.warnings


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            "[lr_schedule]\nwarmup_epochs = 4\n[run]\nepochs = 3\n",
            (
                "the warm-up of 4 epochs takes all of the run's 3 epochs, and the learning rate only reaches 75% of its value at their end: "
                "set lr_schedule.warmup_epochs lower, or run.epochs higher"
            ),
        ),
        (
            "[lr_schedule]\ndelay_epochs = 4\n",
            "lr_schedule.delay_epochs changes nothing: no stage's gradients are more than one update late",
        ),
        (
            '[lr_schedule]\nname = "step"\noptions = { milestones = [0.5, 30, 60] }\n',
            (
                'milestones 30, 60 of learning-rate schedule "step" come after the end of the run\'s 1 epoch, without effect: set '
                "lr_schedule.options.milestones, or run.epochs"
            ),
        ),
        (
            '[checkpoint]\nevery = "2 epochs"\n',
            'checkpoint.every = "2 epochs" is longer than the run of 1 epoch: no checkpoint is written before its end, except at an interruption',
        ),
        (
            '[checkpoint]\nevery = "12 updates"\n',
            'checkpoint.every = "12 updates" is longer than the run of 11 updates: no checkpoint is written before its end, except at an interruption',
        ),
        (
            '[checkpoint]\nbest_is = "largest"\n',
            "checkpoint.best_is changes nothing: checkpoint.best names no metric",
        ),
        (
            '[precision]\nbuffer_dtype = "int8"\n',
            "precision.buffer_dtype changes nothing: the buffers only hold samples of uint8",
        ),
        (
            "[partition]\nsync_batch_norm = true\n",
            "partition.sync_batch_norm changes nothing: there is only one replica",
        ),
        (
            '[precision]\nchannel_dtype = "float16"\n[partition]\nstages = 1\n',
            "precision.channel_dtype changes nothing: there is only one stage, so there are no channels",
        ),
    ],
)
def test_what_changes_nothing(said, more, expected):
    assert said(f"{EXACT}\n{more}") == [expected]


@pytest.mark.parametrize(
    ("epochs", "k", "said_of_it"),
    [
        (
            2,
            2,
            (
                "the learning rates of delayed stages rise over 2 epochs, longer than the run's 1 epoch, and the first stage's "
                "only reaches 71% of its value at their end: set lr_schedule.delay_epochs lower, or run.epochs higher"
            ),
        ),
        (1, 2, None),
        (2, 4, "lr_schedule.delay_epochs changes nothing: no stage's gradients are more than one update late"),
    ],
)
def test_a_rate_by_delay_that_the_run_never_reaches(said, epochs, k, said_of_it):
    """Four micro-batches late, at k = 2 two updates."""
    found = [
        text
        for text in said(SPEC, "--set", f"lr_schedule.delay_epochs={epochs}", "--set", f"method.accumulation={k}")
        if "delay_epochs" in text and not text.startswith("gradients reach")
    ]
    assert found == ([] if said_of_it is None else [said_of_it])


def test_buffers_of_a_method_that_has_none(said):
    text = EXACT.replace('name = "petra"\nschedule = "sequential"', 'name = "backprop"')
    more = '[precision]\nbuffer_dtype = "int8"\nbuffer_device = "cpu"\n'
    assert said(f"{text}\n{more}") == [
        f"precision.{key} changes nothing: no node keeps its input for its backward"
        for key in ("buffer_dtype", "buffer_device")
    ]


@pytest.mark.parametrize(
    "more",
    [
        "[lr_schedule]\nwarmup_epochs = 0.5\n",
        '[lr_schedule]\nname = "step"\noptions = { milestones = [0.5] }\n',
        '[checkpoint]\nevery = "11 updates"\nbest = "test/loss"\nbest_is = "smallest"\n',
        '[precision]\nchannel_dtype = "float16"\n',
    ],
)
def test_what_has_an_effect(said, more):
    assert said(f"{EXACT}\n{more}") == []


def test_an_input_in_a_buffer_is_stored_smaller(said):
    buffered = EXACT.replace('kind = "reversible"', 'kind = "buffered"')
    assert said(f'{buffered}\n[precision]\nbuffer_dtype = "int8"\n') == []

"""Runs that correct a delay: the same bits on any processes and after an interruption, anywhere in a window; and their refusals."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from petra_graph.cli.main import main
from petra_graph.record import checkpoint
from petra_graph.training.training_run import run
from tests.support.forks import ended, ranks
from tests.support.pairwise import pairs_of, thinned
from tests.support.runs import MICRO_BATCHES, SPEC, only_run, weights_bytes, without_times
from tests.support.stopping import StopAt

CORRECTS = {
    "prediction": ["optimizer.delay.predict=true"],
    "discrepancy": ["optimizer.delay.correct_discrepancy=true"],
    "error feedback": ["optimizer.delay.correction=error-feedback"],
}
ADAM = ["optimizer.name=adam", "optimizer.options.lr=0.002"]
LOCKSTEP = ["method.schedule=lockstep", "method.accumulation=1"]
SPIKE = "optimizer.delay.correction=spike"
HOW = {
    "prediction, windows of three": CORRECTS["prediction"],
    "prediction, lockstep": [*CORRECTS["prediction"], *LOCKSTEP],
    "prediction, adam, lockstep, windows of two": [
        *ADAM,
        *CORRECTS["prediction"],
        "method.schedule=lockstep",
        "method.accumulation=2",
    ],
    "prediction with the spike": [*CORRECTS["prediction"], SPIKE, "method.accumulation=1"],
    "discrepancy, windows of three": CORRECTS["discrepancy"],
    "discrepancy, lockstep": [*CORRECTS["discrepancy"], *LOCKSTEP],
    "discrepancy, adam with the spike, lockstep, windows of two": [
        *ADAM,
        *CORRECTS["discrepancy"],
        SPIKE,
        "method.schedule=lockstep",
        "method.accumulation=2",
    ],
    "error feedback, windows of three": CORRECTS["error feedback"],
    "error feedback, adam, lockstep": [
        *ADAM,
        *CORRECTS["error feedback"],
        "method.schedule=lockstep",
        "method.accumulation=6",
    ],
    "error feedback and discrepancy": [*CORRECTS["error feedback"], *CORRECTS["discrepancy"]],
}
NADAM = ["optimizer.name=nadam", "optimizer.options.beta1_by_stage=true"]
BY_DELAY = ["lr_schedule.delay_epochs=1.5"]
ALSO = {
    "the spike, lockstep": [SPIKE, *LOCKSTEP],
    "nadam by stage, lockstep": [*NADAM, *LOCKSTEP],
    "nadam with error feedback": [*NADAM, *CORRECTS["error feedback"]],
    "the spike and a rate by delay": [SPIKE, *BY_DELAY, "method.accumulation=1"],
}
OFF = [
    "optimizer.delay.predict=false",
    "optimizer.delay.correct_discrepancy=false",
    "optimizer.delay.correction=none",
]


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


def words(settings):
    return [word for setting in settings for word in ("--set", setting)]


def same_runs(one, other):
    assert without_times(one) == without_times(other)
    assert weights_bytes(one) == weights_bytes(other)


CALLS = ("trained 1/4", "trained 2/6", "trained 2/8", "evaluating 1")
INTERRUPTED = list(product(HOW | ALSO, CALLS))
USUAL = [INTERRUPTED[at * len(CALLS) + at % len(CALLS)] for at in range(len(HOW | ALSO))]
"""Each way once; the calls take turns, so that each correction meets several."""


@pytest.mark.parametrize(("how", "call"), thinned(INTERRUPTED, USUAL[::2]))
def test_interrupted_and_resumed_is_uninterrupted(spec, whole_run, how, call):
    settings = (HOW | ALSO)[how]
    run(spec, settings, StopAt(call))
    assert main(["run", "--resume", "latest"]) == 0
    same_runs(only_run(), whole_run(SPEC, *settings))


@pytest.mark.parametrize("how", thinned([*HOW], [*HOW][::4]))
def test_a_correction_changes_the_training(whole_run, how):
    assert weights_bytes(whole_run(SPEC, *HOW[how])) != weights_bytes(whole_run(SPEC, *HOW[how], *OFF))


@pytest.mark.parametrize(
    ("correction", "kept"), [("prediction", ""), ("discrepancy", "mean_step"), ("error feedback", "last_step")]
)
def test_a_checkpoint_has_the_true_weights_and_no_others(spec, correction, kept):
    """In the middle of an epoch, a cut holds what it holds without correction, and a correction's own state."""
    run(spec, CORRECTS[correction], StopAt("trained 2/8"))
    run(spec, [*CORRECTS[correction], *OFF, "run.directory=without"], StopAt("trained 2/8"))
    corrected, plain = (held(only_run(parent)) for parent in ("runs", "without"))
    assert all(kept and kept in name for name in corrected.keys() - plain.keys())
    assert bool(kept) == bool(corrected.keys() - plain.keys())
    assert {name: corrected[name].shape for name in plain} == {name: one.shape for name, one in plain.items()}


def held(directory):
    """The tensors of the only checkpoint."""
    (at,) = checkpoint.numbers(directory)
    assert at > MICRO_BATCHES
    files = checkpoint.read_manifest(directory, at).files
    return {name: one for file in files for name, one in checkpoint.read_stage(directory, at, file)[0].items()}


TWICE = [
    CORRECTS["prediction"],
    HOW["prediction, adam, lockstep, windows of two"],
    HOW["discrepancy, adam with the spike, lockstep, windows of two"],
    [*HOW["error feedback and discrepancy"]],
    [*ALSO["the spike, lockstep"]],
    ALSO["nadam by stage, lockstep"],
    [*ALSO["nadam with error feedback"]],
]


@pytest.mark.processes
@pytest.mark.parametrize("settings", thinned(TWICE, TWICE[::4]), ids=str)
def test_two_processes_have_the_bits_of_one(spec, whole_run, settings):
    with ranks(*[("run", spec, *words(settings))] * 2) as running:
        assert ended(running) == [0, 0], running[-1].said
    same_runs(only_run(), whole_run(SPEC, *settings))


REPLICATED = [
    [*CORRECTS["prediction"], "method.schedule=lockstep"],
    [*CORRECTS["discrepancy"], "method.schedule=lockstep"],
    CORRECTS["error feedback"],
    [SPIKE, *BY_DELAY, "method.schedule=lockstep"],
    [*NADAM, "method.schedule=lockstep"],
    ["optimizer.name=muon", SPIKE, "method.accumulation=1"],
    ["optimizer.name=soap", "optimizer.options.precondition_frequency=3", "method.accumulation=1"],
]
"""By what an optimizer keeps: answers for a delay, means of steps, the last step, nothing, a product of rates, and matrices."""


@pytest.mark.processes
@pytest.mark.parametrize("settings", thinned(REPLICATED, REPLICATED[-1:]), ids=str)
def test_two_replicas_have_the_same_bits_in_two_and_four_processes(spec, settings):
    replicas = [*settings, "partition.replicas=2", "data.batch=64", "run.micro_batches=8"]
    for count in (2, 4):
        with ranks(*[("run", spec, *words([*replicas, f"run.directory=on{count}"]))] * count) as running:
            assert ended(running) == [0] * count, running[-1].said
    same_runs(only_run("on2"), only_run("on4"))


@pytest.mark.parametrize("correction", CORRECTS)
def test_a_probe_changes_nothing_and_sees_the_true_weights(whole_run, correction):
    plain, probed = (whole_run(SPEC, *CORRECTS[correction], *more) for more in ((), ("probe.per_epoch=2",)))
    assert weights_bytes(plain) == weights_bytes(probed)


UNDELAYED = ("method.name=backprop", "method.name=gpipe", "partition.stages=1")


@pytest.mark.parametrize(("correction", "setting"), pairs_of(CORRECTS, UNDELAYED, together=1))
def test_without_delay_it_is_the_optimizer_without_correction(whole_run, correction, setting):
    corrected, plain = (whole_run(SPEC, setting, *more) for more in (CORRECTS[correction], ()))
    one, other = (load_file(directory / "weights.safetensors") for directory in (corrected, plain))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


OF_BACKWARDS = {
    "prediction": ("predict", "predicts the parameters that a backward will find"),
    "discrepancy": ("correct_discrepancy", "estimates the parameters that a forward had"),
}
REFUSED = {
    "pipedream": ["method.name=pipedream"],
    "delayed-reconstructed": ["method.name=delayed-reconstructed", SPIKE],
    "a kept graph": ["method.name=pipedream", "method.reversible=graph"],
    "adam": ["method.name=pipedream", "optimizer.name=adam"],
}


@pytest.mark.parametrize(("how", "correction"), pairs_of(REFUSED, OF_BACKWARDS, together=1))
def test_other_weights_are_refused_where_a_backward_uses_those_of_its_forward(write, spec, capsys, correction, how):
    option, does = OF_BACKWARDS[correction]
    name, method = "adam" if how == "adam" else "sgd", REFUSED[how][0].removeprefix("method.name=")
    message = (
        f'optimizer "{name}" {does}, and under method "{method}" the backward of stage 1 uses those of its forward '
    )
    hint = f'leave out optimizer.delay.{option}, or method.name = "petra" or "dsp", whose backwards use the current parameters'
    in_the_file = write("own.toml", SPEC.replace("lr = 0.05 }", f"lr = 0.05 }}\ndelay = {{ {option} = true }}"))
    given = [
        ("run", spec, [*REFUSED[how], *CORRECTS[correction]], f"--set optimizer.delay.{option}=true: "),
        ("plan", in_the_file, REFUSED[how], "own.toml:25:"),
    ]
    for verb, source, settings, where in given:
        assert main([verb, source, *words(settings)]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert message in said
        assert f"help: {hint}" in said
        assert where in said
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("stores", "remedy"),
    [
        (["method.keep=auto", "method.allow_stored=true"], "method.allow_stored = false"),
        (["method.backward=stored", "method.reversible=input"], 'method.backward = "current"'),
    ],
)
def test_under_petra_another_key_lets_backwards_use_the_current_weights(spec, capsys, stores, remedy):
    """The way out that was named, method.name = "petra", was the method that the run had."""
    settings = [*stores, *CORRECTS["prediction"]]
    assert main(["run", spec, *words(settings)]) == 2
    assert f"help: leave out optimizer.delay.predict, or {remedy}" in " ".join(capsys.readouterr().err.split())
    taken = remedy.replace(" ", "").replace('"', "")
    assert main(["run", spec, "--dry-run", *words([*settings, taken])]) == 0


@pytest.mark.parametrize(
    ("name", "setting", "remedy"),
    [
        ("sgd", "method.accumulation=1", "stage 1 has one of 3 updates help: set method.accumulation = 3, or "),
        ("adamw", "method.accumulation=2", "stage 1 has one of 1.5 updates help: set method.accumulation = 3, or "),
        ("nadam", "method.schedule=lockstep", "stage 1 has one of 2 updates help: set method.accumulation = 6, or "),
    ],
)
def test_error_feedback_is_refused_where_a_delay_is_above_one_update(spec, capsys, name, setting, remedy):
    for verb in ("run", "plan"):
        assert main([verb, spec, *words([f"optimizer.name={name}", setting, *CORRECTS["error feedback"]])]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert (
            f'--set optimizer.delay.correction=error-feedback: optimizer "{name}" with optimizer.delay.correction is for '
            f"delays of at most 1 update, and {remedy}method.schedule to one with less delay, or leave out optimizer.delay.correction"
        ) in said
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "remedy",
    [["method.accumulation=3"], ["method.schedule=[2, 2, 2, 1]"], [SPIKE], ["method.schedule=sequential"]],
    ids=str,
)
def test_what_the_refusal_of_error_feedback_names_works(write, remedy):
    text = SPEC.replace("accumulation = 3\n", "").replace(
        "lr = 0.05 }", 'lr = 0.05 }\ndelay = { correction = "error-feedback" }'
    )
    spec = write("feedback.toml", text)
    assert main(["run", spec, "--dry-run"]) == 2
    assert main(["run", spec, "--dry-run", *words(remedy)]) == 0


@pytest.mark.parametrize(
    ("name", "others", "message"),
    [
        (
            "sgd",
            CORRECTS["error feedback"],
            'predict = true expects steps without correction = "error-feedback"; set predict = false, or correction = "spike"',
        ),
        (
            "adamw",
            CORRECTS["discrepancy"],
            (
                "predict = true computes forwards at the weights of their backwards, and correct_discrepancy = true backwards "
                "at the weights of their forwards; set one of them to false"
            ),
        ),
    ],
    ids=str,
)
def test_prediction_is_refused_beside_what_it_does_not_expect(spec, capsys, name, others, message):
    settings = [f"optimizer.name={name}", *CORRECTS["prediction"], *others]
    for verb in ("run", "plan", "validate"):
        assert main([verb, spec, *words(settings)]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("correction", "setting"), pairs_of(CORRECTS, (*UNDELAYED, "method.schedule=sequential"), together=1)
)
def test_without_delay_a_warning_says_that_corrections_change_nothing(spec, capsys, correction, setting):
    settings = words([setting, *CORRECTS[correction]])
    warning = "[optimizer.delay] changes nothing: no stage has a delay"
    assert main(["run", spec, "--dry-run", *settings]) == 0
    assert capsys.readouterr().err.count(warning) == 1
    assert main(["plan", spec, *settings]) == 0
    assert " ".join("".join(capsys.readouterr()).split()).partition("warnings !")[2].count(warning) == 1


@pytest.mark.parametrize("settings", [*CORRECTS.values(), ["method.name=pipedream"]], ids=str)
def test_with_a_delay_nothing_is_said(spec, capsys, settings):
    assert main(["run", spec, "--dry-run", *words(settings)]) == 0
    assert "no stage has a delay" not in capsys.readouterr().err


def test_a_comparison_of_plans_has_every_method(spec, capsys):
    assert main(["plan", spec, "--compare"]) == 0
    assert "pipedream" in capsys.readouterr().out

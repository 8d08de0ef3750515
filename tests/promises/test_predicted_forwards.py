"""Runs whose forwards use predicted parameters: the same bits on any processes and after an interruption, anywhere in a window."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from petra_graph.cli.main import main
from petra_graph.kinds.listener import Listener
from petra_graph.record import checkpoint
from petra_graph.training.training_run import run
from tests.support.forks import ended, ranks
from tests.support.runs import MICRO_BATCHES, SPEC, only_run, weights_bytes, without_times
from tests.support.stopping import StopAt

PREDICTS = SPEC.replace("options = { lr = 0.05 }", "options = { lr = 0.05, predict = true }")
HOW = {
    "windows of three": [],
    "lockstep": ["method.schedule=lockstep", "method.accumulation=1"],
    "adam, lockstep, windows of two": [
        "optimizer.name=adam",
        "optimizer.options.lr=0.002",
        "optimizer.options.predict=true",
        "method.schedule=lockstep",
        "method.accumulation=2",
    ],
    "with the spike": ["optimizer.options.correction=spike", "method.accumulation=1"],
}
GRID = ["precision.streams=grid"]


@pytest.fixture
def spec(write):
    assert "predict" in PREDICTS
    return write("small.toml", PREDICTS)


def words(settings):
    return [word for setting in settings for word in ("--set", setting)]


@pytest.mark.parametrize("call", ["trained 1/4", "trained 2/6", "trained 2/8", "evaluating 1"])
@pytest.mark.parametrize("how", HOW)
def test_interrupted_and_resumed_is_uninterrupted(spec, how, call):
    run(spec, HOW[how], StopAt(call))
    assert main(["run", "--resume", "latest"]) == 0
    run(spec, [*HOW[how], "run.directory=whole"], Listener())
    assert without_times(only_run()) == without_times(only_run("whole"))
    assert weights_bytes(only_run()) == weights_bytes(only_run("whole"))


@pytest.mark.parametrize("how", HOW)
def test_prediction_changes_the_training(spec, how):
    run(spec, HOW[how], Listener())
    run(spec, [*HOW[how], "optimizer.options.predict=false", "run.directory=without"], Listener())
    assert weights_bytes(only_run()) != weights_bytes(only_run("without"))


def test_a_checkpoint_has_the_true_weights_and_no_predicted_ones(spec):
    """In the middle of an epoch, a cut holds what it holds without prediction."""
    run(spec, HOW["lockstep"], StopAt("trained 2/8"))
    run(spec, [*HOW["lockstep"], "optimizer.options.predict=false", "run.directory=without"], StopAt("trained 2/8"))
    predicted, plain = (held(only_run(parent)) for parent in ("runs", "without"))
    assert predicted.keys() == plain.keys()
    assert {name: one.shape for name, one in predicted.items()} == {name: one.shape for name, one in plain.items()}


def held(directory):
    """The tensors of the only checkpoint."""
    (at,) = checkpoint.numbers(directory)
    assert at > MICRO_BATCHES
    files = checkpoint.read_manifest(directory, at).files
    return {name: one for file in files for name, one in checkpoint.read_stage(directory, at, file)[0].items()}


@pytest.mark.processes
@pytest.mark.parametrize("settings", [[], GRID, HOW["adam, lockstep, windows of two"]], ids=str)
def test_two_processes_have_the_bits_of_one(spec, settings):
    with ranks(*[("run", spec, *words(settings))] * 2) as running:
        assert ended(running) == [0, 0], running[-1].said
    assert main(["run", spec, *words([*settings, "run.directory=one"])]) == 0
    assert weights_bytes(only_run()) == weights_bytes(only_run("one"))
    assert without_times(only_run()) == without_times(only_run("one"))


@pytest.mark.processes
@pytest.mark.parametrize("settings", [[], GRID], ids=str)
def test_two_replicas_have_the_same_bits_in_two_and_four_processes(spec, settings):
    replicas = [*settings, "partition.replicas=2", "data.batch=64", "method.schedule=lockstep"]
    for count in (2, 4):
        with ranks(*[("run", spec, *words([*replicas, f"run.directory=on{count}"]))] * count) as running:
            assert ended(running) == [0] * count, running[-1].said
    assert weights_bytes(only_run("on2")) == weights_bytes(only_run("on4"))
    assert without_times(only_run("on2")) == without_times(only_run("on4"))


def test_a_probe_changes_nothing_and_sees_the_true_weights(spec):
    run(spec, HOW["lockstep"], Listener())
    run(spec, [*HOW["lockstep"], "probe.per_epoch=2", "run.directory=probed"], Listener())
    assert weights_bytes(only_run()) == weights_bytes(only_run("probed"))


def test_without_delay_it_is_the_optimizer_without_prediction(spec):
    for settings in (["method.name=backprop"], ["method.name=gpipe"], ["partition.stages=1"]):
        run(spec, settings, Listener())
        run(spec, [*settings, "optimizer.options.predict=false", "run.directory=base"], Listener())
        one, other = (load_file(only_run(parent) / "weights.safetensors") for parent in ("runs", "base"))
        assert all(torch.equal(value, other[name]) for name, value in one.items())
        for parent in ("runs", "base"):
            shutil.rmtree(parent)


REFUSED = {
    "pipedream": ["method.name=pipedream"],
    "delayed-reconstructed": ["method.name=delayed-reconstructed", "optimizer.options.correction=spike"],
    "a kept graph": ["method.name=pipedream", "method.reversible=graph"],
    "adam": ["method.name=pipedream", "optimizer.name=adam", "optimizer.options.predict=true"],
}


@pytest.mark.parametrize("verb", ["run", "plan"])
@pytest.mark.parametrize("how", REFUSED)
def test_it_is_refused_where_a_backward_uses_the_parameters_of_its_forward(spec, capsys, how, verb):
    assert main([verb, spec, *words(REFUSED[how])]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "predicts the parameters that a backward will find, and under method" in said
    assert "the backward of stage 1 uses those of its forward" in said
    assert "set predict = false, or method.name" in said
    assert (
        "optimizer.options.predict" in said or "predict = true }" in said
    )  # given on the command line, or in the file
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "settings",
    [["method.name=backprop"], ["method.schedule=sequential"], ["method.name=gpipe"], ["partition.stages=1"]],
)
def test_without_delay_a_warning_says_that_corrections_change_nothing(spec, capsys, settings):
    assert main(["run", spec, "--dry-run", *words([*settings, "optimizer.options.correction=spike"])]) == 0
    said = capsys.readouterr().err
    for key in ("predict = true", 'correction = "spike"'):
        assert said.count(f"optimizer.options.{key} changes nothing: no stage has a delay") == 1
    assert main(["plan", spec, *words(settings)]) == 0
    said = " ".join("".join(capsys.readouterr()).split())
    assert said.count("optimizer.options.predict = true changes nothing: no stage has a delay") == 1


@pytest.mark.parametrize("settings", [[], ["method.name=pipedream", "optimizer.options.predict=false"]], ids=str)
def test_with_a_delay_nothing_is_said(spec, capsys, settings):
    assert main(["run", spec, "--dry-run", *words(settings)]) == 0
    assert "no stage has a delay" not in capsys.readouterr().err


def test_a_comparison_of_plans_has_every_method(spec, capsys):
    assert main(["plan", spec, "--compare"]) == 0
    assert "pipedream" in capsys.readouterr().out

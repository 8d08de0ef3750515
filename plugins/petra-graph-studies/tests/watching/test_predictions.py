"""Predictions of fixed samples: those of the evaluation, once an epoch, also after an interruption."""

from __future__ import annotations

import json

import pytest
from torch import tensor
from torch.nn.functional import cross_entropy

from petra_graph.cli.main import main
from petra_graph.kinds.listener import Listener
from petra_graph.training.training_run import run
from tests.support.loggers import named
from tests.support.runs import SPEC, events, only_run
from tests.support.stopping import StopAt

PREDICTING = SPEC + named("callback", "predictions")


def lines(directory):
    return [json.loads(line) for line in (directory / "predictions.jsonl").read_text().splitlines()]


def test_all_samples_give_the_loss_of_the_evaluation(write):
    """Digits has 359 test samples; their order and their batches are those of the evaluation."""
    everything = f"callback.predictions.options.indices={[*range(359), 1_000_000]}"
    run(write("small.toml", PREDICTING), [everything, "data.evaluation_batch=100"], Listener())
    found = lines(only_run())
    assert [(line["epoch"], line["index"]) for line in found] == [(e, i) for e in (1, 2) for i in range(359)]
    losses = [event["value"] for event in events(only_run()) if event["name"] == "test/loss"]
    for epoch, expected in enumerate(losses, start=1):
        of_epoch = [line for line in found if line["epoch"] == epoch]
        outputs, targets = tensor([line["output"] for line in of_epoch]), tensor([line["target"] for line in of_epoch])
        assert float(cross_entropy(outputs, targets)) == pytest.approx(expected, rel=1e-5)


def test_epochs_without_an_evaluation_have_no_lines(write):
    run(write("small.toml", PREDICTING), ["run.epochs=3", "run.evaluate_every=2"], Listener())
    assert sorted({line["epoch"] for line in lines(only_run())}) == [2, 3]


@pytest.mark.parametrize("call", ["trained 2/5", "evaluating 2", "ended 2"])
def test_after_an_interruption_the_lines_are_the_same(write, call):
    path = write("small.toml", PREDICTING.replace("epochs = 2", "epochs = 3\nmicro_batches = 6"))
    run(path, ["run.directory=whole"], Listener())
    run(path, ["checkpoint.every=1 updates"], StopAt(call))
    # As if the process had been killed after a later epoch: its lines come again.
    with (only_run() / "predictions.jsonl").open("a") as file:
        file.write('{"epoch": 9}\n{"epo')
    assert main(["run", "--resume", "latest"]) == 0
    assert lines(only_run()) == lines(only_run("whole"))

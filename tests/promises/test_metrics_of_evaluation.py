"""Metrics in whole runs on digits: scikit-learn's values of the network's own outputs, on any processes, after a kill, in `evaluate`."""

from __future__ import annotations

import json
import math

import pytest
import torch

from petra_graph.api import Run
from petra_graph.cli.main import main
from petra_graph.inference.evaluate import evaluate_run, open_data
from petra_graph.inference.saved_run import SavedRun
from petra_graph.record import checkpoint
from petra_graph.record.recorded_run import read_run
from tests.support.runs import MICRO_BATCHES, SPEC, events, only_run, summary_of

METRICS = f"""
[[metric]]
name = "{__name__}:F1"
recorded_as = "f1"
[[metric]]
name = "{__name__}:F1"
recorded_as = "f1-micro"
options = {{ average = "micro" }}
[[metric]]
name = "perplexity"
"""
ROUNDING = 1e-9
"""Of values from float64 shares of equal outputs."""


class F1:
    """scikit-learn's, of all samples, kept as torchmetrics' classes keep them."""

    share = True

    def __init__(self, *, average: str = "macro"):
        self.average, self.pairs = average, []

    def update(self, output, target):
        self.pairs += zip(target.tolist(), output.argmax(1).tolist(), strict=True)

    def compute(self):
        from sklearn.metrics import f1_score

        return f1_score(*zip(*self.pairs, strict=True), average=self.average)


def test_they_are_scikit_learns_of_the_networks_own_outputs(whole_run):
    from sklearn.metrics import f1_score

    directory = whole_run(SPEC + METRICS)
    saved = SavedRun.open(directory)
    network, _ = saved.load()
    test = open_data(saved).test
    samples, targets = test.fetch(range(len(test)), seed=0, epoch=0)
    with torch.no_grad():
        output = network(samples).double()
    predicted, wanted = output.argmax(1).numpy(), targets.numpy()
    expected = {
        "f1": f1_score(wanted, predicted, average="macro"),
        "f1-micro": f1_score(wanted, predicted, average="micro"),
    }
    found = summary_of(directory)["test"]
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=ROUNDING)
    assert found["f1-micro"] == pytest.approx(found["top1"])
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]), rel=1e-5)
    assert evaluate_run(saved).means == found, "to the bit"
    assert Run(directory).metrics("test/f1")[-1] == (2 * MICRO_BATCHES, found["f1"])
    in_sevens = evaluate_run(SavedRun.open(directory, ["data.evaluation_batch=7"])).means
    assert in_sevens["f1"] == found["f1"]


def test_the_best_checkpoint_follows_the_declared_direction(whole_run):
    kept = ("checkpoint.best=test/perplexity", "checkpoint.keep=1")
    directory = whole_run(SPEC + METRICS, *kept, "run.epochs=4", "optimizer.options.lr=0.3")
    values = [value for _, value in Run(directory).metrics("test/perplexity")]
    best = min(range(4), key=values.__getitem__)
    assert checkpoint.numbers(directory) == sorted({4 * MICRO_BATCHES, (best + 1) * MICRO_BATCHES}, reverse=True)
    found = read_run(directory).best
    assert (found.metric, found.epoch) == ("test/perplexity", best + 1)
    assert SavedRun.open(directory).load("best")[1].endswith(f"{(best + 1) * MICRO_BATCHES}")


UNDEFINED = """\
class Undefined:
    share = True
    def __init__(self):
        self.n = 0
    def update(self, output, target):
        self.n += len(target)
    def compute(self):
        return {"seen": 0.5, "more": float("nan") if self.n > 100 else 0.25}

"""


def test_a_value_that_is_undefined_on_the_test_data_is_said_once_and_left_out(write, capsys):
    write("my_metrics.py", UNDEFINED)
    text = SPEC + '[[metric]]\nname = "my_metrics:Undefined"\n[checkpoint]\nbest = "test/Undefined/seen"\n'
    assert main(["run", write("small.toml", text)]) == 0
    said = capsys.readouterr().err
    assert said.count("warning: test/Undefined/more is nan, which is not recorded: the metric is undefined") == 1
    assert "Undefined/seen 50.00 %" in said, "what it declares is read of the class"
    assert not [event for event in events(only_run()) if event["name"] == "test/Undefined/more"]
    assert summary_of(only_run())["test"]["Undefined/seen"] == 0.5
    assert main(["evaluate", "latest"]) == 0
    assert "undefined: Undefined/more is nan" in capsys.readouterr().out
    assert main(["evaluate", "latest", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["undefined"] == ["Undefined/more is nan"]

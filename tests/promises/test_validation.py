"""A run with validation samples is judged by them, never trains on one, and is tested once, at its end."""

from __future__ import annotations

import signal

import pytest

from petra_graph.api import Run
from petra_graph.cli.main import main
from petra_graph.errors import SpecError
from petra_graph.inference.evaluate import evaluate_run
from petra_graph.inference.saved_run import SavedRun
from petra_graph.plugins.callback import Listener
from petra_graph.record.recorded_run import read_run
from petra_graph.training.prepare import prepare
from petra_graph.training.run import run
from tests.support.runs import SPEC, only_run, overrides, summary_of, weights_bytes, without_times

SHARE = "data.validation=0.1"
BEST = ("checkpoint.best=validation/top1", "optimizer.options.lr=0.3")
"""With this rate, the best epoch is not the last one."""


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


def test_no_sample_is_both_trained_on_and_validated(spec):
    opened = prepare(spec, [SHARE, "data.batch=10", "data.options.crop_padding=0"]).opened
    assert (len(opened.data.train), len(opened.data.validation)) == (1294, 144)
    assert sum(opened.evaluated.sizes) == 144
    own = {id(opened.data.train): set(), id(opened.data.validation): set()}
    for batches in (opened.epoch(0), opened.epoch(1), opened.evaluated):
        for part in batches.parts:
            own[id(batches.split)].update(batches.split.rows[part].tolist())
    trained, validated = own.values()
    assert trained.isdisjoint(validated)
    # An epoch of 129 micro-batches leaves out 4 samples, and two epochs seldom the same ones.
    assert len(trained) >= 1290
    assert validated == set(opened.data.validation.rows.tolist())


def test_the_test_comes_once_at_the_end_with_the_best_weights(spec):
    run(spec, [SHARE, *BEST, "run.epochs=5"], Listener())
    found, recorded = read_run(only_run()), Run(only_run())
    values = [value for _, value in recorded.metrics("validation/top1")]
    best = values.index(max(values)) + 1
    assert best < 5
    summary = summary_of(only_run())
    assert summary["test_weights"] == {"weights": "best", "epoch": best}
    assert (found.best.metric, found.best.epoch) == ("validation/top1", best)
    assert len(recorded.metrics("validation/loss")) == 5
    assert [value for _, value in recorded.metrics("test/loss")] == [summary["test"]["loss"]]
    saved = SavedRun.open("latest")
    assert evaluate_run(saved, which="best").means == summary["test"], "to the bit"
    of_validation = evaluate_run(saved, split="validation")
    assert of_validation.means == summary["validation"], "to the bit, with the last weights"
    assert of_validation.changed == []
    assert evaluate_run(saved, split="train").samples == 1294
    # Nothing of the end is in the weights of the run: they are the last ones.
    run(spec, [SHARE, BEST[1], "run.epochs=5", "run.directory=last"], Listener())
    assert weights_bytes(only_run("last")) == weights_bytes(only_run())
    assert summary_of(only_run("last"))["test_weights"] == {"weights": "last", "epoch": 5}
    assert summary_of(only_run("last"))["test"] == evaluate_run(SavedRun.open(only_run())).means


def test_a_run_that_is_interrupted_in_its_test_is_tested_when_resumed(spec, whole_run):
    class InTheTest(Listener):
        def testing(self, weights):
            signal.raise_signal(signal.SIGINT)

    assert run(spec, [SHARE, *BEST], InTheTest()).interrupted is not None
    assert summary_of(only_run())["test"] is None
    assert main(["run", "--resume", "latest"]) == 0
    one, other = only_run(), whole_run(SPEC, SHARE, *BEST)
    assert weights_bytes(one) == weights_bytes(other)
    assert without_times(one) == without_times(other)
    for key in ("train", "validation", "test", "test_weights", "best"):
        assert summary_of(one).get(key) == summary_of(other).get(key)


STOP = "callback=[{name='early-stopping', options={metric='test/loss'}}]"


@pytest.mark.parametrize(
    ("settings", "place", "said"),
    [
        (["data.validation=0.0001"], "data.validation", "a share of 0.0001 of 1,438 training samples is no sample"),
        (["data.validation=test"], "data.validation", "must be a split of its own"),
        (["data.validation=dev"], "data.validation", 'has no split "dev"'),
        ([SHARE, "checkpoint.best=test/top1"], "checkpoint.best", 'write "validation/top1"'),
        (["checkpoint.best=validation/top1"], "checkpoint.best", 'write "test/top1"'),
        ([SHARE, STOP], "callback", "validation/loss"),
        ([STOP.replace("test", "validation")], "callback", "or set data.validation"),
    ],
)
def test_what_cannot_be_is_refused_before_the_training(spec, capsys, settings, place, said):
    assert main(["run", spec, "--dry-run", *overrides(*settings)]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert place in printed


def test_without_validation_samples_there_are_none_to_evaluate(whole_run):
    directory = whole_run(SPEC)
    assert {"validation", "test_weights"}.isdisjoint(summary_of(directory))
    with pytest.raises(SpecError, match=r"no data\.validation"):
        evaluate_run(SavedRun.open(directory), split="validation")
    with pytest.raises(SpecError, match="those that it did not train on"):
        evaluate_run(SavedRun.open(directory, [SHARE]), split="validation")

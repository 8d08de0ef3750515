"""Trials on a part of the data: two micro-batches of everything, and micro-batches to learn by heart."""

from __future__ import annotations

import pytest
import torch

from petra_graph.cli.main import main
from petra_graph.plugins.callback import Listener
from petra_graph.training.data import MicroBatches
from petra_graph.training.run import run
from tests.support.runs import MICRO_BATCHES, SPEC, events, only_run, summary_of, weights_bytes, without_times


class Numbers:
    """A split whose samples are their own indices, with the epoch as target."""

    def __init__(self, n, targets_alone=False):
        self.n = n
        if targets_alone:
            self.fetch_targets = lambda indices: torch.from_numpy(indices) + 1000

    def __len__(self):
        return self.n

    def fetch(self, indices, *, seed, epoch):
        return torch.from_numpy(indices), torch.full((len(indices),), epoch)


def made(split, **options):
    return MicroBatches(split=split, batch=3, seed=7, epoch=0, shuffle=True, drop_last=True, **options)


def read(batches):
    return [samples.tolist() for samples, _ in batches]


@pytest.mark.parametrize(("limit", "expected"), [(None, 6), (1, 1), (4, 4), (100, 6)])
def test_a_limit_leaves_the_first_micro_batches(limit, expected):
    whole, limited = made(Numbers(20)), made(Numbers(20), limit=limit)
    assert (len(limited), len(limited.sizes)) == (expected, expected)
    assert read(limited) == read(whole)[:expected]


def test_repeated_micro_batches_are_those_of_the_first_epoch_in_every_epoch():
    from attrs import evolve

    first = made(Numbers(20), limit=2)
    repeated = first.repeat()
    assert len(repeated) == len(repeated.sizes) == 2
    for epoch in range(3):
        batches = evolve(repeated, epoch=epoch)
        assert read(batches) == read(first)
        assert [targets.tolist() for _, targets in batches] == [[epoch] * 3] * 2, "augmented anew"


def test_two_micro_batches_of_everything(write, capsys):
    assert main(["run", write("small.toml", SPEC), "--fast-dev-run"]) == 0
    printed = capsys.readouterr().err
    assert "1 epoch of 2 micro-batches" in printed
    assert "\na trial on a part of the data: run.micro_batches = 2, run.evaluation_batches = 2\n" in printed
    summary = summary_of(only_run())
    assert (summary["status"], summary["epochs"], summary["micro_batches"], summary["updates"]) == ("done", 1, 2, 1)
    assert summary["trial"] == {"micro_batches": 2, "evaluation_batches": 2}
    assert {event["name"] for event in events(only_run())} >= {"train/loss", "test/loss"}
    resolved = str(only_run() / "resolved.toml")
    assert main(["run", resolved, "--set", "run.directory=again"]) == 0
    assert weights_bytes(only_run("again")) == weights_bytes(only_run())


@pytest.mark.parametrize(
    "settings",
    [
        ["callback=[{name='probe', options={per_epoch=5}}]"],
        ["lr_schedule.name=cosine", "lr_schedule.warmup_epochs=5"],
        ["lr_schedule.name=step", "lr_schedule.options.milestones=[1, 2]"],
        ["method.name=gpipe", "method.accumulation=8", "checkpoint.every=1 epoch"],
        ["run.evaluate_every=7", "checkpoint.best=test/top1"],
        ["run.epochs=2"],
    ],
)
def test_it_suits_every_specification(write, settings):
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["run", write("small.toml", SPEC), "--fast-dev-run", *words]) == 0
    epochs = 2 if settings == ["run.epochs=2"] else 1
    assert summary_of(only_run())["micro_batches"] == 2 * epochs


def test_learnt_by_heart(write):
    """A small network on one micro-batch: its test is the training data, and gets as good."""
    path = write(
        "small.toml",
        SPEC.replace("batch = 128", "batch = 16\nevaluation_batch = 5").replace("dropout = 0.1", "dropout = 0.0"),
    )
    settings = ["run.epochs=60", "run.evaluate_every=60", "data.options.crop_padding=0", "method.accumulation=1"]
    assert (
        main(
            [
                "run",
                path,
                "--set",
                "run.micro_batches=1",
                "--set",
                "run.overfit=true",
                *(word for one in settings for word in ("--set", one)),
            ]
        )
        == 0
    )
    summary = summary_of(only_run())
    assert summary["trial"] == {"micro_batches": 1, "overfit": True}
    assert summary["micro_batches"] == 60
    assert summary["train"]["top1"] == summary["test"]["top1"] == 1.0


def test_a_run_of_a_trial_goes_on(write):
    path = write("small.toml", SPEC)
    assert (
        main(
            [
                "run",
                path,
                "--set",
                "run.micro_batches=3",
                "--set",
                "run.overfit=true",
                "--set",
                "checkpoint.every=1 epoch",
                "--set",
                "run.epochs=1",
            ]
        )
        == 0
    )
    assert main(["run", "--resume", "latest", "--set", "run.epochs=2"]) == 0
    run(path, ["run.micro_batches=3", "run.overfit=true", "run.directory=whole"], Listener())
    assert without_times(only_run()) == without_times(only_run("whole"))
    assert MICRO_BATCHES > 3

"""Epochs: micro-batches are numbered from the run's start, and data differs from epoch to epoch."""

from __future__ import annotations

import pytest

from petra_graph.kinds.listener import Listener
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.training.checkpoints.checkpointing import Checkpoints
from petra_graph.training.loop.callbacks import Callbacks
from petra_graph.training.training_run import run
from tests.support.runs import MICRO_BATCHES, SPEC, events, only_run


def test_numbers_go_on_through_epochs_and_each_epoch_sees_its_own_order(write, monkeypatch):
    """Random keys follow from the numbers: counted anew, every epoch would drop the same features."""
    ranges, firsts = [], []
    train = Scheduler.train

    def watching(self, data, micro_batches, observe, *_, **__):
        batches = list(data)
        ranges.append(micro_batches)
        firsts.append(batches[0][1].tolist())
        train(self, batches, micro_batches, observe)

    monkeypatch.setattr(Scheduler, "train", watching)
    run(write("small.toml", SPEC), ["run.epochs=3"], Listener())
    assert ranges == [range(MICRO_BATCHES * epoch, MICRO_BATCHES * (epoch + 1)) for epoch in range(3)]
    assert firsts[0] != firsts[1] != firsts[2] != firsts[0]


def test_the_reported_rate_is_the_latest_updates(write):
    """Eight updates warm up over the first four: the last of epoch 1 had 4/4 of the rate."""
    run(write("small.toml", SPEC), ["lr_schedule.warmup_epochs=1", "run.log_every=3"], Listener())
    reported = [(e["step"], e["value"]) for e in events(only_run()) if e["name"] == "train/learning_rate"]
    assert reported[:3] == [(3, 0.0125), (6, 0.0125), (9, 0.025)]
    assert [e["value"] for e in events(only_run()) if e["name"] == "learning_rate"] == [0.05, 0.05]


def test_what_a_run_does_not_have_is_not_asked(write, monkeypatch):
    """A run without checkpoints asked for a cut 14 times a micro-batch."""
    for owner, name in ((Checkpoints, "due"), (Checkpoints, "may_pass"), (Callbacks, "trained")):
        monkeypatch.setattr(owner, name, lambda *_: pytest.fail("asked"))
    run(write("small.toml", SPEC), ["run.epochs=1"], Listener())

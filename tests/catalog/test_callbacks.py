"""Early stopping, averages of parameters and TensorBoard, wherever the stages are and whatever interrupts the run."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from petra_graph.catalog.callbacks import Averages, EarlyStopping, TensorBoard
from petra_graph.cli.main import main
from petra_graph.errors import RunFailed, SpecError
from petra_graph.plugins import Started
from petra_graph.plugins.callback import EpochEnded, Listener
from petra_graph.record import checkpoint
from petra_graph.training.run import run
from tests.support.forks import RUN, ended, ranks
from tests.support.forks import SPEC as SHARED
from tests.support.runs import (
    MICRO_BATCHES,
    SPEC,
    StopAt,
    events,
    named,
    only_run,
    summary_of,
    weights_bytes,
    without_times,
)

STOPPING = named("callback", "early-stopping")
IMPATIENT = STOPPING + 'options = { metric = "train/top1", patience = 2, min_delta = 0.3 }\n'
"""Ends after epoch 3: no epoch of the small run is that much better."""


def ended_epoch(number: int, test: float | None) -> EpochEnded:
    return EpochEnded(
        epoch=number,
        train={"loss": 1.0, "top1": 0.5},
        test=None if test is None else {"loss": test, "top1": -test},
        samples_per_second=1.0,
        learning_rate=0.1,
    )


def stopped_after(values: list[float | None], **options: object) -> int | None:
    """The first epoch after which it stops."""
    options = {"metric": "test/loss", **options}
    callback = EarlyStopping(**options)  # type: ignore[arg-type]
    for number, value in enumerate(values, start=1):
        callback.epoch_ended(ended_epoch(number, value))
        if callback.stops():
            return number
        callback, former = EarlyStopping(**options), callback  # type: ignore[arg-type]
        callback.restore(former.state())  # as if each epoch were in another process
    return None


@pytest.mark.parametrize(
    ("expected", "values", "options"),
    [
        (4, [3, 2, 2, 2], {"patience": 2}),
        (None, [3, 2, 2, 1.9], {"patience": 2}),
        (4, [3, 2, 2, 1.9], {"patience": 2, "min_delta": 0.2}),
        (None, [3, 2, 1], {"patience": 2, "metric": "test/top1"}),
        (3, [1, 2, 3], {"patience": 2, "metric": "test/top1"}),
        (3, [1, None, None], {"patience": 2}),
        (None, [None, None, None], {"patience": 1}),
        (2, [1, 1], {"patience": 1, "metric": "train/loss"}),
    ],
)
def test_when_it_stops(expected, values, options):
    assert stopped_after(values, **options) == expected


def test_another_metric_than_those_of_the_run(write):
    with pytest.raises(RunFailed, match=r"KeyError: 'top3' \(callback \"early-stopping\"\)"):
        run(write("small.toml", SPEC + STOPPING), ["callback.early-stopping.options.metric=test/top3"], Listener())
    assert summary_of(only_run())["status"] == "failed"
    with pytest.raises(SpecError, match='metric names a split, as in "validation/top1" \\(got "top1"\\)'):
        run("small.toml", ["callback.early-stopping.options.metric=top1"], Listener())


def test_a_run_that_is_stopped_early_is_the_first_part_of_the_longer_one(write, capsys):
    settings = ("--set", "run.epochs=9", "--set", "checkpoint.every=1 epoch")
    assert main(["run", write("small.toml", SPEC + IMPATIENT), *settings]) == 0
    reason = "after epoch 3: early-stopping: train/top1 is not better than"
    assert f"\nstopped early {reason}" in capsys.readouterr().out
    summary = summary_of(only_run())
    assert (summary["status"], summary["epochs"]) == ("done", 3)
    assert summary["stopped_early"].startswith(reason)
    assert checkpoint.numbers(only_run())[0] == 3 * MICRO_BATCHES
    assert main(["run", write("plain.toml", SPEC), "--set", "run.epochs=3", "--set", "run.directory=plain"]) == 0
    assert weights_bytes(only_run()) == weights_bytes(only_run("plain"))
    assert without_times(only_run()) == without_times(only_run("plain"))
    assert main(["run", "--resume", "latest"]) == 0
    assert summary_of(only_run())["epochs"] == 3, "its patience is still at its end"
    assert main(["run", "--resume", "latest", "--set", "callback.early-stopping.options.patience=3"]) == 0
    assert summary_of(only_run())["epochs"] == 4


@pytest.mark.processes
def test_two_processes_stop_together(shared_folder):
    text = SHARED.replace("epochs = 2", "epochs = 50") + STOPPING + "options = { patience = 1, min_delta = 100 }\n"
    (shared_folder / "shared.toml").write_text(text)
    with ranks(RUN, RUN) as running:
        assert ended(running) == [0, 0], running[-1].said
        assert "stopped early after epoch 2: early-stopping: " in running[-1].said
    assert summary_of(only_run())["status"] == "done"
    assert [event["epoch"] for event in events(only_run()) if event["name"] == "test/loss"] == [1, 2]
    assert main([*RUN, "--set", "run.directory=one"]) == 0
    assert weights_bytes(only_run()) == weights_bytes(only_run("one"))


# --- averages ---


AVERAGED = SPEC + named("callback", "ema") + "options = { decay = 0.75 }\n"


def test_the_average_follows():
    parameter = torch.zeros(2)
    made = Averages({"node/weight": parameter}, decay=0.75)
    for update, value in enumerate((1, 1.25, 1.6875), start=1):
        parameter += 1
        made.updated(update)
        assert made.state()["node/weight"].tolist() == [value, value]


def test_without_memory_the_average_is_the_run_s_weights(write):
    run(write("small.toml", AVERAGED), ["callback.ema.options.decay=0"], Listener())
    averages, weights = (load_file(only_run() / f"weights{end}.safetensors") for end in ("-ema", ""))
    assert averages.keys() == weights.keys()
    assert all(torch.equal(averages[name], weights[name]) for name in weights)


def test_under_other_stages_the_average_goes_on(write):
    run(write("small.toml", AVERAGED), ["run.directory=other"], StopAt("trained 2/5"))
    before = load_file(only_run("other") / "weights-ema.safetensors")
    others = ("--set", "partition.stages=2", "--set", 'partition.devices=["cpu"]', "--set", "optimizer.options.lr=0")
    still = ("--set", "callback.ema.options.decay=0.999999")
    assert main(["run", "--resume", str(only_run("other")), *others, *still]) == 0
    after = load_file(only_run("other") / "weights-ema.safetensors")
    weights = load_file(only_run("other") / "weights.safetensors")
    for name in (name for name in after if "running" not in name and "num_batches" not in name):
        assert torch.allclose(before[name], after[name], atol=1e-5)
    assert any(not torch.allclose(after[name], weights[name], atol=1e-5) for name in after)


# --- TensorBoard ---


ONES = dict.fromkeys(("epochs", "micro_batches", "batch", "accumulation", "stages", "parameters"), 1)


@pytest.mark.parametrize("resumed_at", [None, 10])
def test_tensorboard_reads_what_was_recorded_but_for_what_a_resumed_run_forgets(tmp_path, monkeypatch, resumed_at):
    """Files are read in the order of their names, which begin with the second in which they were opened."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seconds = SimpleNamespace(time=itertools.count(1.0e9).__next__)
    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.time", seconds)
    for at, steps in ((None, (10, 20)), (resumed_at, (20, 30))):
        logger = TensorBoard()
        logger.started(Started(name="run", directory=tmp_path, method="petra", schedule="1f1b", resumed_at=at, **ONES))
        for step in steps:
            logger.record(epoch=1, step=step, values={"train/loss": (step + len(steps) * (at or 0)) / 8})
        logger.close()
    scalars = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("train/loss")
    expected = [(10, 10), (20, 20), (20, 20), (30, 30)] if resumed_at is None else [(10, 10), (20, 40), (30, 50)]
    assert [(event.step, event.value) for event in scalars] == [(step, value / 8) for step, value in expected]

"""A run from its specification to its directory, again to the same bits, ended early, and on a part of the data."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import re
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from petra_graph.catalog.blocks import RevMlp
from petra_graph.cli.main import main
from petra_graph.errors import RunFailed
from petra_graph.executor.update import Updater
from petra_graph.plugins.callback import Listener
from petra_graph.training.identity import Fingerprint
from petra_graph.training.run import run
from tests.support.runs import (
    FILES,
    MICRO_BATCHES,
    SPEC,
    UPDATES,
    FakeListener,
    events,
    files_of,
    only_run,
    small_files,
    summary_of,
    weights_bytes,
    without_times,
)


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A run of the specification as it is, which no test changes."""
    folder = tmp_path_factory.mktemp("ended")
    (folder / "small.toml").write_text(SPEC)
    return run(str(folder / "small.toml"), [f"run.directory={folder}/runs"], Listener())


@pytest.fixture(scope="module")
def directory(ended):
    return Path(ended.summary["directory"])


def directory_of(path, *overrides):
    return run(path, overrides, Listener()).summary["directory"]


# --- what a run leaves -----------------------------------------------------------------------------------------------


def test_a_run_leaves_a_directory(ended, directory):
    assert re.fullmatch(r"\d{8}T\d{6}Z-small-[0-9a-f]{6}", directory.name)
    assert files_of(directory) == FILES
    assert (directory / "spec.toml").read_text() == SPEC
    summary, seconds = summary_of(directory), ended.summary["seconds"]
    assert summary == ended.summary
    assert ended.interrupted is None
    assert 0 < seconds["training"] <= seconds["total"]
    assert set(summary["test"]) == set(summary["train"]) == {"loss", "top1", "top5"}
    expected = {
        "status": "done",
        "method": "petra",
        "schedule": "1f1b",
        "stages": 4,
        "processes": 1,
        "resumed_from": [],
    }
    expected |= {"epochs": 2, "micro_batches": 2 * MICRO_BATCHES, "updates": 2 * UPDATES}
    expected["parameters"] = 65 * 24 + 2 * (13 * 12 + 13 * 12) + 25 * 10
    expected["sha256"] = {"weights.safetensors": hashlib.sha256(weights_bytes(directory)).hexdigest()}
    assert {key: summary[key] for key in expected} == expected


def test_what_the_process_measured(ended):
    measured = ended.summary["measured"]
    (process,) = measured["processes"]
    assert 0 < process["peak_bytes_before"] <= process["peak_bytes"]
    counts = [
        {name: value["operations"] for name, value in stage.items() if name not in {"stage", "device"}}
        for stage in process["stages"]
    ]
    # The digits' 359 test samples are 3 batches.
    each = {"forward": 2 * MICRO_BATCHES, "backward": 2 * MICRO_BATCHES, "update": 2 * UPDATES, "evaluation": 2 * 3}
    assert counts == [each] * 4
    busy = sum(stage[name]["seconds"] for stage in process["stages"] for name in each if name != "evaluation")
    assert 0 < busy <= ended.summary["seconds"]["training"]


SCORES = tuple(f"{part}/{name}" for part in ("train", "test") for name in ("loss", "top1", "top5"))


def test_the_events(ended, directory):
    found = events(directory)
    assert {tuple(event) for event in found} == {("time", "epoch", "step", "name", "value")}
    assert [(e["epoch"], e["step"], e["name"]) for e in found] == [
        (epoch, step, name)
        for epoch in (1, 2)
        for step, names in (
            (MICRO_BATCHES * (epoch - 1) + 4, ("train/micro_batch_loss", "train/learning_rate")),
            (MICRO_BATCHES * (epoch - 1) + 8, ("train/micro_batch_loss", "train/learning_rate")),
            (MICRO_BATCHES * epoch, (*SCORES, "samples_per_second", "learning_rate")),
        )
        for name in names
    ]
    assert all(math.isfinite(event["value"]) for event in found)
    last = {event["name"]: event["value"] for event in found}
    assert {name: last[f"test/{name}"] for name in ("loss", "top1", "top5")} == ended.summary["test"]


# --- the same bits ---------------------------------------------------------------------------------------------------


def test_the_same_spec_and_seed_give_the_same_bytes_whatever_happened_before_in_the_process(spec, directory):
    torch.manual_seed(123)
    torch.set_num_threads(2)
    torch.rand(7)
    again = directory_of(spec)
    assert Path(again).name != directory.name
    assert weights_bytes(again) == weights_bytes(directory)


def test_logging_and_evaluation_do_not_change_the_bits(spec, directory):
    otherwise = directory_of(spec, "run.log_every=1", "data.evaluation_batch=50", "run.evaluate_every=2")
    assert weights_bytes(otherwise) == weights_bytes(directory)


def test_the_resolved_spec_repeats_the_run_and_resolves_to_itself(spec):
    first = directory_of(spec, "method.schedule=lockstep", "run.seed=3", "lr_schedule.warmup_epochs=1")
    again = directory_of(f"{first}/resolved.toml")
    assert weights_bytes(again) == weights_bytes(first)
    assert (Path(again) / "resolved.toml").read_text() == (Path(first) / "resolved.toml").read_text()
    given = [event | {"time": 0} for event in events(Path(first)) if "per_second" not in event["name"]]
    found = [event | {"time": 0} for event in events(Path(again)) if "per_second" not in event["name"]]
    assert given == found


# --- failures --------------------------------------------------------------------------------------------------------

WHERE = re.compile(r"the loss at micro-batch \d+ \(epoch 1\) is \S+(, and that of the first one was \S+)?")


@pytest.mark.parametrize("schedule", ["lockstep", "1f1b", "sequential"])
def test_a_loss_that_is_not_finite_stops_the_run(spec, schedule):
    listener = FakeListener()
    with pytest.raises(RunFailed) as caught:
        run(spec, ["optimizer.options.lr=1e30", f"method.schedule={schedule}", "method.accumulation=1"], listener)
    (problem,) = caught.value.problems
    assert WHERE.fullmatch(problem.message)
    assert problem.hint.startswith("lower the learning rate, ")
    directory = only_run()
    assert files_of(directory) == (FILES | {"failure.txt"}) - {"weights.safetensors"}
    summary = summary_of(directory)
    assert (summary["status"], summary["weights"], summary["epochs"]) == ("failed", None, 0)
    assert summary["error"] == [str(problem)]
    assert "Traceback" in (directory / "failure.txt").read_text()
    assert problem.message in (directory / "failure.txt").read_text()
    assert listener.calls[-1] == "stopped"
    events(directory)


def test_a_block_that_fails_in_evaluation_is_reported_with_its_stage(spec, monkeypatch):
    residual = RevMlp.residual

    def training_only(self, x):
        if not self.training:
            raise ValueError("not now")
        return residual(self, x)

    monkeypatch.setattr(RevMlp, "residual", training_only)
    with pytest.raises(RunFailed, match=r"stage 2 \(rev\.0\) failed in the evaluation of batch 0: ValueError: not now"):
        run(spec, (), Listener())
    assert summary_of(only_run())["train"]["loss"] > 0


@pytest.mark.parametrize(("size", "file"), [(8000, "metrics.jsonl"), (8000, "weights.safetensors")])
def test_a_full_disk_fails_the_run_and_still_leaves_a_summary(spec, size, file):
    with pytest.raises(RunFailed) as caught, small_files(size):
        run(
            spec, ["run.log_every=1", "run.epochs=9"] if file == "metrics.jsonl" else ["run.log_every=1000"], Listener()
        )
    directory = only_run()
    assert str(caught.value).startswith(f"cannot write {directory / file}: ")
    assert "File too large" in str(caught.value)
    assert summary_of(directory)["status"] == "failed"
    assert summary_of(directory)["weights"] is None
    assert (directory / "failure.txt").exists()
    assert not [path for path in directory.iterdir() if "partial" in path.name]
    assert events(directory)


def test_a_full_disk_does_not_end_a_fingerprint_with_words_of_torch(spec):
    run(spec, (), Listener())
    fingerprint = Fingerprint.read(only_run())
    with pytest.raises(RunFailed, match=r"^cannot write .*fingerprint\.pt: .*File too large"), small_files(500):
        fingerprint.write(only_run())
    assert Fingerprint.read(only_run()).outputs == fingerprint.outputs


def test_what_fails_before_training_leaves_a_summary_too(spec, monkeypatch):
    """The network did not fit into memory, say: the directory is there already."""

    def no_memory(*_, **__):
        raise MemoryError("no room")

    monkeypatch.setattr("petra_graph.training.prepare.Prepared.executors", no_memory)
    with pytest.raises(RunFailed, match="MemoryError: no room") as caught:
        run(spec, (), Listener())
    summary = summary_of(only_run())
    assert (summary["status"], summary["micro_batches"], summary["weights"]) == ("failed", 0, None)
    assert caught.value.summary == summary
    assert "no_memory" in (only_run() / "failure.txt").read_text()


# --- interruptions ---------------------------------------------------------------------------------------------------


class Interrupts(FakeListener):
    """Sends this process a signal at one micro-batch, as Ctrl-C would."""

    def __init__(self, at: str, number: signal.Signals = signal.SIGINT, times: int = 1) -> None:
        super().__init__()
        self.at, self.number, self.times = at, number, times

    def trained(self, epoch, micro_batches, means):
        super().trained(epoch, micro_batches, means)
        if self.calls[-1] == self.at:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_everything_written(spec, number):
    listener = Interrupts("trained 2/3", number)
    ended = run(spec, (), listener)
    directory = only_run()
    assert ended.interrupted.signal_name == number.name
    assert files_of(directory) == FILES | {"checkpoints"}
    summary = summary_of(directory)
    assert (summary["status"], summary["epochs"], summary["micro_batches"]) == ("interrupted", 1, MICRO_BATCHES + 5)
    assert summary["weights"] == "weights.safetensors"
    assert all(bool(value.isfinite().all()) for value in load_file(directory / "weights.safetensors").values())
    # The first stage was two forwards ahead of the head: all stages stop before the same one.
    assert listener.calls[-2:] == ["trained 2/5", "stopped"]


def test_a_second_interruption_stops_at_once(spec):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(spec, (), Interrupts("trained 1/2", times=2))
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.processes
def test_an_interruption_of_workers_leaves_none_behind(spec):
    run(spec, ["data.workers=2"], Interrupts("trained 1/2"))
    assert summary_of(only_run())["status"] == "interrupted"
    assert multiprocessing.active_children() == []


def test_a_gradient_whose_norm_is_not_finite_is_located(spec, monkeypatch):
    monkeypatch.setattr(Updater, "squared_norm", lambda _: torch.tensor(float("nan")))
    with pytest.raises(RunFailed, match=r"^stage \d \(.*\), update 1: the norm of the gradient is nan"):
        run(spec, ["optimizer.clip.limit=1"], Listener())
    assert summary_of(only_run())["status"] == "failed"


# --- on a part of the data: two micro-batches of everything ---------------------------


def test_two_micro_batches_of_everything(write, capsys):
    assert main(["run", write("small.toml", SPEC), "--fast-dev-run"]) == 0
    printed = capsys.readouterr().err
    assert "1 epoch of 2 micro-batches" in printed
    summary = summary_of(only_run())
    assert (summary["status"], summary["epochs"], summary["micro_batches"], summary["updates"]) == ("done", 1, 2, 1)
    assert {event["name"] for event in events(only_run())} >= {"train/loss", "test/loss"}
    resolved = str(only_run() / "resolved.toml")
    assert main(["run", resolved, "--set", "run.directory=again"]) == 0
    assert weights_bytes(only_run("again")) == weights_bytes(only_run())


def test_a_run_of_a_trial_goes_on(write):
    path = write("small.toml", SPEC)
    settings = ["run.micro_batches=3"]
    run(path, [*settings, "checkpoint.every=1 epoch", "run.epochs=1"], Listener())
    assert main(["run", "--resume", "latest", "--set", "run.epochs=2"]) == 0
    run(path, [*settings, "run.directory=whole"], Listener())
    assert without_times(only_run()) == without_times(only_run("whole"))

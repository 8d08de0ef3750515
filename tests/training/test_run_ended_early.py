"""A run that fails or is interrupted leaves all that it had, and says why it ended."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal

import pytest
import torch
from safetensors.torch import load_file

from petra_graph.errors import PluginError, RunFailed
from petra_graph.executor.update import Updater
from petra_graph.plugins import contract
from petra_graph.plugins.callback import Listener
from petra_graph.training.run import run
from tests.support.runs import (
    FILES,
    MICRO_BATCHES,
    SPEC,
    FakeListener,
    events,
    files_of,
    only_run,
    small_files,
    summary_of,
)


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


# --- failures --------------------------------------------------------------------------------------------------------

WHERE = re.compile(
    r"the loss is \S+ at micro-batch \d+ \(epoch 1\)"
    r"(: \S+ of node \"[a-z.0-9]+\" in stage [1-4] is not finite after \d+ updates?|, though all parameters are finite"
    r"|, and that of the first one was \S+)"
)


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


def test_what_fails_before_training_leaves_a_summary_too(spec, monkeypatch):
    """The network did not fit into memory, say: the directory is there already."""

    def no_memory(*_, **__):
        raise MemoryError("no room")

    monkeypatch.setattr("petra_graph.training.prepare.executors", no_memory)
    with pytest.raises(RunFailed, match="MemoryError: no room") as caught:
        run(spec, (), Listener())
    summary = summary_of(only_run())
    assert (summary["status"], summary["micro_batches"], summary["weights"]) == ("failed", 0, None)
    assert caught.value.summary == summary
    assert "no_memory" in (only_run() / "failure.txt").read_text()


def test_a_block_that_fails_in_evaluation_is_reported_with_its_stage(spec, monkeypatch):
    from petra_graph.catalog.blocks import RevMlp

    residual = RevMlp.residual

    def training_only(self, x):
        if not self.training:
            raise ValueError("not now")
        return residual(self, x)

    monkeypatch.setattr(RevMlp, "residual", training_only)
    with pytest.raises(RunFailed, match=r"stage 2 \(rev\.0\) failed in the evaluation of batch 0: ValueError: not now"):
        run(spec, (), Listener())
    assert summary_of(only_run())["train"]["loss"] > 0


@pytest.mark.parametrize("table", ["loss", "optimizer", "lr_schedule", "data"])
def test_a_plugin_that_cannot_be_built_is_reported_before_anything_is_written(spec, monkeypatch, here, table):
    make = contract.make

    def broken(plugin, *given, **options):
        return {}["x"] if plugin.kind.table == table else make(plugin, *given, **options)

    monkeypatch.setattr(contract, "make", broken)
    with pytest.raises(PluginError, match="cannot be built: KeyError"):
        run(spec, (), Listener())
    assert not (here / "runs").exists()


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

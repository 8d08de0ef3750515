"""A run from its specification to its directory, and again to the same bits."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path

import pytest
import torch

from petra_graph.errors import SpecError
from petra_graph.kinds.listener import Listener
from petra_graph.training.training_run import run
from tests.support.runs import (
    FILES,
    MICRO_BATCHES,
    SPEC,
    UPDATES,
    FakeListener,
    events,
    files_of,
    only_run,
    summary_of,
    weights_bytes,
)


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


def directory_of(path, *overrides):
    return run(path, overrides, Listener()).summary["directory"]


# --- what a run leaves -----------------------------------------------------------------------------------------------


def test_a_run_leaves_a_directory(spec):
    ended = run(spec, (), Listener())
    directory = only_run()
    assert re.fullmatch(r"\d{8}T\d{6}Z-small-[0-9a-f]{6}", directory.name)
    assert files_of(directory) == FILES
    assert (directory / "spec.toml").read_text() == SPEC
    assert summary_of(directory) == ended.summary
    assert ended.interrupted is None
    assert {"python", "packages", "threads", "command"} <= json.loads((directory / "env.json").read_text()).keys()


def test_the_summary(spec):
    summary = run(spec, (), Listener()).summary
    seconds, rate = summary["seconds"], summary["samples_per_second"]
    assert 0 < seconds["first"] < seconds["training"] <= seconds["total"]
    assert rate > 0
    assert set(summary["test"]) == set(summary["train"]) == {"loss", "top1", "top5"}
    assert {
        key: value
        for key, value in summary.items()
        if key not in {"seconds", "samples_per_second", "test", "train", "measured"}
    } == {
        "name": "small",
        "status": "done",
        "directory": str(only_run()),
        "method": "petra",
        "schedule": "1f1b",
        "accumulation": 3,
        "stages": 4,
        "processes": 1,
        "resumed_from": [],
        "predicted": None,
        "checkpoint": None,
        "parameters": 65 * 24 + 2 * (13 * 12 + 13 * 12) + 25 * 10,
        "precision": {
            "compute": "float32",
            "fp32_precision": "tf32",
            "streams": "float",
            "grid_bits": 16,
            "memory_format": "channels-last",
            "buffer_dtype": "as-streams",
            "buffer_device": "stage",
            "channel_dtype": "as-streams",
        },
        "seed": 0,
        "epochs": 2,
        "micro_batches": 2 * MICRO_BATCHES,
        "updates": 2 * UPDATES,
        "weights": "weights.safetensors",
        "sha256": {"weights.safetensors": hashlib.sha256(weights_bytes(only_run())).hexdigest()},
    }


def test_what_the_process_measured(spec):
    measured = run(spec, (), Listener()).summary["measured"]
    assert measured["from_micro_batch"] == 0
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
    assert 0 < busy <= process["training_seconds"]


SCORES = tuple(f"{part}/{name}" for part in ("train", "test") for name in ("loss", "top1", "top5"))


def test_the_events(spec):
    run(spec, (), Listener())
    found = events(only_run())
    assert {tuple(event) for event in found} == {("time", "epoch", "step", "name", "value")}
    assert [(e["epoch"], e["step"], e["name"]) for e in found] == [
        (epoch, step, name)
        for epoch in (1, 2)
        for step, names in (
            (MICRO_BATCHES * (epoch - 1) + 4, ("train/micro_batch_loss", "train/learning_rate")),
            (MICRO_BATCHES * (epoch - 1) + 8, ("train/micro_batch_loss", "train/learning_rate")),
            (
                MICRO_BATCHES * epoch,
                (*SCORES, "samples_per_second", "learning_rate"),
            ),
        )
        for name in names
    ]
    assert all(math.isfinite(event["value"]) for event in found)
    last = {event["name"]: event["value"] for event in found}
    assert {name: last[f"test/{name}"] for name in ("loss", "top1", "top5")} == summary_of(only_run())["test"]


def test_tensorboard_sees_the_same_events(spec):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(spec, ["run.epochs=1"], Listener())
    read = EventAccumulator(str(only_run() / "tensorboard")).Reload()
    expected = {e["step"]: e["value"] for e in events(only_run()) if e["name"] == "train/micro_batch_loss"}
    assert {e.step: e.value for e in read.Scalars("train/micro_batch_loss")} == pytest.approx(expected)


def test_training_learns_something(spec):
    test = run(spec, ["optimizer.options.lr=0.1", "run.epochs=3"], Listener()).summary["test"]
    assert test["top1"] > 0.5
    assert test["top5"] > 0.9


def test_the_listener_receives_every_event_in_order(spec):
    listener = FakeListener()
    run(spec, ["run.evaluate_every=2", "run.epochs=3"], listener)
    trained = [[f"trained {epoch}/{done}" for done in range(1, MICRO_BATCHES + 1)] for epoch in (1, 2, 3)]
    assert listener.calls == [
        "started",
        *trained[0],
        "epoch_ended 1",
        *trained[1],
        "evaluating 2",
        "epoch_ended 2",
        *trained[2],
        "evaluating 3",
        "epoch_ended 3",
        "stopped",
    ]
    assert [report.test is None for report in listener.reports] == [True, False, False]
    assert (listener.run.micro_batches, listener.run.batch, listener.run.stages) == (MICRO_BATCHES, 128, 4)


def test_nothing_is_left_by_a_spec_that_is_wrong(spec, here):
    with pytest.raises(SpecError):
        run(spec, ["data.batch=100000"], Listener())
    assert not (here / "runs").exists()


# --- the same bits ---------------------------------------------------------------------------------------------------


def test_the_same_spec_and_seed_give_the_same_bytes(spec):
    one, other = directory_of(spec), directory_of(spec)
    assert one != other
    assert weights_bytes(one) == weights_bytes(other)


def test_another_seed_gives_other_weights(spec):
    assert weights_bytes(directory_of(spec)) != weights_bytes(directory_of(spec, "run.seed=1"))


def test_what_happened_before_in_the_process_does_not_matter(spec):
    one = directory_of(spec)
    torch.manual_seed(123)
    torch.set_num_threads(2)
    torch.rand(7)
    assert weights_bytes(directory_of(spec)) == weights_bytes(one)


@pytest.mark.processes
def test_workers_do_not_change_the_bits(spec):
    assert weights_bytes(directory_of(spec, "data.workers=2")) == weights_bytes(directory_of(spec))


def test_logging_and_evaluation_do_not_change_the_bits(spec):
    often = directory_of(spec, "run.log_every=1", "data.evaluation_batch=50")
    seldom = directory_of(spec, "run.log_every=1000", "run.evaluate_every=2")
    assert weights_bytes(often) == weights_bytes(seldom)


IMAGES = """\
extends = "base.toml"

[architecture]
name = "revnet"
options = { depth = 18, width = 0.0625 }
"""
BASE = """\
[optimizer]
options = { lr = 0.05 }
[data]
name = "random"
batch = 4
options = { shape = [3, 8, 8], classes = 5, train = 12, test = 6 }
"""


def test_the_resolved_spec_repeats_the_run(spec):
    first = directory_of(spec, "method.schedule=lockstep", "run.seed=3", "lr_schedule.warmup_epochs=1")
    again = directory_of(f"{first}/resolved.toml")
    assert weights_bytes(again) == weights_bytes(first)
    given = [event | {"time": 0} for event in events(Path(first)) if "per_second" not in event["name"]]
    found = [event | {"time": 0} for event in events(Path(again)) if "per_second" not in event["name"]]
    assert given == found


def test_the_resolved_spec_of_an_architecture_repeats_the_run(write):
    write("base.toml", BASE)
    first = directory_of(write("images.toml", IMAGES))
    resolved = (Path(first) / "resolved.toml").read_text()
    assert "architecture" not in resolved
    assert "extends" not in resolved
    assert weights_bytes(directory_of(f"{first}/resolved.toml")) == weights_bytes(first)


def test_a_resolved_spec_resolves_to_itself(spec):
    first = directory_of(spec)
    again = directory_of(f"{first}/resolved.toml")
    assert (Path(again) / "resolved.toml").read_text() == (Path(first) / "resolved.toml").read_text()

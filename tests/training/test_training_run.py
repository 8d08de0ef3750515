"""A run from its specification to its directory, and again to the same bits."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path

import pytest
import torch

from petra_graph.plugins.callback import Listener
from petra_graph.training.run import run
from tests.support.runs import (
    FILES,
    MICRO_BATCHES,
    SPEC,
    UPDATES,
    FakeListener,
    events,
    files_of,
    summary_of,
    weights_bytes,
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
    assert summary_of(directory) == ended.summary
    assert ended.interrupted is None
    assert {"python", "packages", "threads", "command"} <= json.loads((directory / "env.json").read_text()).keys()


def test_the_summary(ended, directory):
    summary = ended.summary
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
        "directory": str(directory),
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
            "memory_format": "channels-last",
            "buffer_dtype": "as-streams",
            "channel_dtype": "as-streams",
        },
        "seed": 0,
        "epochs": 2,
        "micro_batches": 2 * MICRO_BATCHES,
        "updates": 2 * UPDATES,
        "weights": "weights.safetensors",
        "sha256": {"weights.safetensors": hashlib.sha256(weights_bytes(directory)).hexdigest()},
    }


def test_what_the_process_measured(ended):
    measured = ended.summary["measured"]
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


def test_the_events(ended, directory):
    found = events(directory)
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
    assert {name: last[f"test/{name}"] for name in ("loss", "top1", "top5")} == ended.summary["test"]


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


# --- the same bits ---------------------------------------------------------------------------------------------------


def test_the_same_spec_and_seed_give_the_same_bytes_whatever_happened_before_in_the_process(spec, directory):
    torch.manual_seed(123)
    torch.set_num_threads(2)
    torch.rand(7)
    again = directory_of(spec)
    assert Path(again).name != directory.name
    assert weights_bytes(again) == weights_bytes(directory)


@pytest.mark.processes
def test_workers_do_not_change_the_bits(spec, directory):
    assert weights_bytes(directory_of(spec, "data.workers=2")) == weights_bytes(directory)


def test_logging_and_evaluation_do_not_change_the_bits(spec, directory):
    otherwise = directory_of(spec, "run.log_every=1", "data.evaluation_batch=50", "run.evaluate_every=2")
    assert weights_bytes(otherwise) == weights_bytes(directory)


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


def test_the_resolved_spec_repeats_the_run_and_resolves_to_itself(spec):
    first = directory_of(spec, "method.schedule=lockstep", "run.seed=3", "lr_schedule.warmup_epochs=1")
    again = directory_of(f"{first}/resolved.toml")
    assert weights_bytes(again) == weights_bytes(first)
    assert (Path(again) / "resolved.toml").read_text() == (Path(first) / "resolved.toml").read_text()
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

"""Interrupted and resumed is uninterrupted, to the bit: weights, events and summary, whatever interrupted the run, and where."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from petra_graph.catalog.optimizers.torch_optimizers import NAdam
from petra_graph.cli.main import main
from petra_graph.plugins.callback import Listener
from petra_graph.record import checkpoint
from petra_graph.record.run_directory import lock
from petra_graph.training.checkpoint import CutPlan
from petra_graph.training.run import run
from tests.support.runs import (
    MICRO_BATCHES,
    SPEC,
    only_run,
    summary_of,
    weights_bytes,
    without_times,
)
from tests.support.stopping import StopAt

EPOCHS = 3
TEXT = SPEC.replace("epochs = 2", f"epochs = {EPOCHS}")


@pytest.fixture
def spec(write):
    return write("small.toml", TEXT)


@pytest.fixture(scope="module")
def _interrupted_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted")
    (folder / "small.toml").write_text(TEXT)
    run(str(folder / "small.toml"), [f"run.directory={folder}/runs"], StopAt("trained 2/9"))
    return only_run(folder / "runs")


@pytest.fixture
def interrupted(spec, here, _interrupted_once):
    """A run of the specification that was interrupted in its second epoch, in `runs`."""
    return Path(shutil.copytree(_interrupted_once, Path("runs") / _interrupted_once.name))


def same_run(one: Path, other: Path) -> None:
    assert weights_bytes(one) == weights_bytes(other)
    assert without_times(one) == without_times(other)
    timed = {"seconds", "samples_per_second", "measured", "predicted", "planned_and_measured"}
    timed |= {"directory", "resumed_from", "changed", "processes", "checkpoint"}
    summaries = ({key: value for key, value in summary_of(each).items() if key not in timed} for each in (one, other))
    assert next(summaries) == next(summaries)


@pytest.fixture
def uninterrupted(spec, whole_run):
    """The directory of the run that nothing interrupts, under given settings; nothing may change it."""

    def train(*settings: str) -> Path:
        return whole_run(Path(spec).read_text(), *settings)

    return train


def resume(directory: Path | str = "latest", *words: str) -> int:
    return main(["run", "--resume", str(directory), *words])


ANYWHERE = (
    "trained 1/6",
    f"trained 1/{MICRO_BATCHES}",
    "evaluating 1",
    "ended 1",
    "trained 2/1",
    "trained 3/9",
    "evaluating 3",
)


def test_interrupted_anywhere_again_and_again(spec, uninterrupted):
    """Also before a micro-batch more has been trained."""
    whole = uninterrupted()
    run(spec, (), StopAt("trained 1/1"))
    for call in ANYWHERE:
        directory = only_run()
        assert run(str(directory / "resolved.toml"), (), StopAt(call), directory).interrupted is not None
    assert resume() == 0
    same_run(whole, only_run())
    assert len(summary_of(only_run())["resumed_from"]) == 1 + len(ANYWHERE)


STAGES = ("--set", "partition.stages=2", "--set", 'partition.devices=["cpu"]')
"""Two in place of four, with other delays."""
OFTEN = [
    ["method.schedule=lockstep", "optimizer.name=adamw"],
    ["method.name=1f1b-flush", "data.workers=2", 'method.keep={"stem"="input", "rev.0"="nothing"}'],
    ["precision.buffer_dtype=int8", "lr_schedule.name=cosine", "callback=[{name='probe', options={per_epoch=3}}]"],
]


@pytest.mark.parametrize("settings", OFTEN, ids=str)
def test_every_cut(spec, uninterrupted, settings, monkeypatch):
    """Checkpoints wherever there may be one; the run is resumed from some of them, in the middle of windows too."""
    whole = uninterrupted(*settings)
    words = [word for setting in settings for word in ("--set", setting)]
    with monkeypatch.context() as everywhere:
        everywhere.setattr(CutPlan, "due", lambda plan, at: at > 0 and plan.allowed(at) == at)
        everywhere.setattr(CutPlan, "has_cuts", True)
        assert main(["run", spec, *words, "--set", "checkpoint.keep=1000"]) == 0
    directory = only_run()
    same_run(whole, directory)
    cuts = checkpoint.numbers(directory)
    assert len(cuts) >= EPOCHS * MICRO_BATCHES // 4
    for at in cuts[1::17]:
        copied = Path("copies") / str(at)
        shutil.copytree(directory, copied)
        checkpoint.keep_only(copied, [at])
        assert resume(copied, "--set", "checkpoint.keep=1") == 0
        same_run(whole, copied)


def test_checkpoints_change_no_bit_and_old_ones_go(spec, uninterrupted):
    whole = uninterrupted()
    settings = ["checkpoint.every=2 updates", "checkpoint.keep=2"]
    run(spec, settings, Listener())
    same_run(whole, only_run())
    # Three micro-batches in a window, and two in an epoch's last one; the last checkpoint is the end.
    assert checkpoint.numbers(only_run()) == [33, 28]


def test_other_options_of_the_optimizer_hold(interrupted, uninterrupted):
    assert resume("latest", "--set", "optimizer.options.momentum=0.1") == 0
    assert weights_bytes(interrupted) != weights_bytes(uninterrupted())


def test_interrupted_again_after_other_stages(spec):
    """The operations of that epoch are counted from where the pipeline filled anew, its windows from the epoch's start."""
    run(spec, ["run.epochs=2"], StopAt("trained 1/5"))
    for name in ("whole", "again"):
        shutil.copytree(only_run(), name)
    assert resume("whole", *STAGES) == 0
    overrides = [text for text in STAGES if text != "--set"]
    ended = run("again/resolved.toml", overrides, StopAt("trained 1/9"), Path("again"))
    assert ended.interrupted is not None
    assert resume("again") == 0
    assert weights_bytes("again") == weights_bytes("whole")


def test_one_process_alone_goes_on_with_a_run(interrupted, capsys):
    descriptor = lock(interrupted)
    assert descriptor is not None
    assert resume() == 1
    assert "another process writes the run" in capsys.readouterr().err
    os.close(descriptor)
    assert resume() == 0


def test_a_run_that_is_done_can_be_longer(spec, uninterrupted, capsys):
    whole = uninterrupted("run.epochs=4", "checkpoint.every=1 epoch")
    run(spec, ["checkpoint.every=1 epoch"], Listener())
    assert resume("latest", "--set", "run.epochs=4") == 0
    assert weights_bytes(only_run()) == weights_bytes(whole)
    said = capsys.readouterr().err
    assert "continues before micro-batch 33" in said
    assert "\nchanged: run.epochs: 3 then, 4 now\n" in said, "what differs is named"


# --- what goes wrong ---------------------------------------------------------------------------------------------------


def test_numbers_that_are_not_finite_are_in_no_checkpoint(spec, monkeypatch):
    """Where processes are far apart, a stage may pass a cut with ruined parameters before the head sees it."""
    finite = checkpoint._finite
    spoilt = iter([False] * 4)  # of the second checkpoint's four stages
    written: list[bool] = []

    def only_at_first(tensors):
        written.append(finite(tensors) if len(written) < 4 else next(spoilt, True))
        return written[-1]

    monkeypatch.setattr(checkpoint, "_finite", only_at_first)
    run(spec, ["run.epochs=2", "checkpoint.every=1 epoch"], Listener())
    assert written == [True] * 4 + [False] * 4
    assert checkpoint.numbers(only_run()) == [MICRO_BATCHES]
    assert [path.name for path in (only_run() / "checkpoints").iterdir()] == ["000000000011"]


# --- other stages -----------------------------------------------------------------------------------------------------


def test_under_other_stages_the_micro_batches_in_flight_are_discarded(spec, capsys):
    """Four stages with staleness 3, 2, 1 and 0 become two."""
    run(spec, (), StopAt("trained 2/6"))
    directory = only_run()
    at = checkpoint.numbers(directory)[0]
    before = load_file(directory / "weights.safetensors")
    assert resume("latest", *STAGES) == 0
    said = capsys.readouterr().err
    assert f"continues before micro-batch {at}" in said
    assert "micro-batches in flight or waiting for an update and fills" in said
    after = summary_of(directory)
    assert (after["stages"], after["micro_batches"], after["status"]) == (2, EPOCHS * MICRO_BATCHES, "done")
    assert load_file(directory / "weights.safetensors").keys() == before.keys()
    assert after["test"]["top1"] > 0.3


COUNTING = """\
from pathlib import Path
import torch

class Counting(torch.optim.SGD):
    def __init__(self, groups, *, lr: float = 0.1):
        super().__init__([{"params": [*groups.decayed, *groups.undecayed], "steps": 0}], lr=lr)

    def step(self):
        super().step()
        self.param_groups[0]["steps"] += 1
        with Path("steps").open("a") as file:
            print(self.param_groups[0]["steps"], len(self.param_groups[0]["params"]), file=file)
"""


def with_optimizer(name: str) -> str:
    return SPEC[: SPEC.index("[optimizer]")] + f'[optimizer]\nname = "{name}"\n' + SPEC[SPEC.index("[data]") :]


@pytest.fixture
def counting(write):
    """A specification whose optimizer counts; it has made two updates or three of four, by stage, and the checkpoint is there."""
    write("specs/counting.py", COUNTING)  # beside the first specification, where a resume finds it as well
    run(write("specs/small.toml", with_optimizer("counting:Counting")), (), StopAt("trained 1/6"))
    Path("steps").unlink()


def test_under_other_stages_what_an_optimizer_counts_goes_on(counting):
    stages = 'partition.stages=[["stem"], ["rev.0", "rev.1", "head"]]'
    assert resume("latest", "--set", stages, "--set", 'partition.devices=["cpu"]') == 0
    of_second_stage = [line for line in Path("steps").read_text().splitlines() if line.endswith(" 10")]
    assert of_second_stage[0] == "3 10", "its deepest node had been updated twice"
    assert main(["evaluate", "latest"]) == 0, "the folder of its first specification is still known"


def test_under_other_stages_an_optimizer_has_what_it_is_built_with_there(spec, monkeypatch):
    """The momentum of NAdam by stage was that of the stage that had been there."""
    nadam = ["optimizer.name=nadam", "optimizer.options.beta1_by_stage=true", "method.accumulation=1"]
    run(spec, nadam, StopAt("trained 1/4"))
    used = set()
    monkeypatch.setattr(NAdam, "step", lambda self: used.add(self.param_groups[0]["betas"][0]))
    stages = 'partition.stages=[["stem"], ["rev.0"], ["rev.1", "head"]]'
    assert resume("latest", "--set", stages, "--set", 'partition.devices=["cpu"]') == 0
    assert sorted(used) == pytest.approx([0.9 + late / 3 * 0.09 for late in (0, 1, 2)])


LAYERWISE = """\
from pathlib import Path
import torch
class Layerwise(torch.optim.SGD):
    def step(self):
        with Path("rates").open("a") as file:
            print(*(group["lr"] for group in self.param_groups), file=file)
        super().step()

def build(groups, *, lr: float = 0.1):
    rates = ((groups.decayed, lr), (groups.undecayed, 8 * lr))
    return Layerwise([{"params": list(some), "lr": rate} for some, rate in rates], lr=lr)
"""


def test_rates_of_groups_go_on_with_their_ratios(write, uninterrupted):
    """The executor gave all groups one rate; a checkpoint has those of its last update."""
    write("layerwise.py", LAYERWISE)
    spec = write("small.toml", with_optimizer("layerwise:build").replace("epochs = 2", f"epochs = {EPOCHS}"))
    cosine = "lr_schedule.name=cosine"
    whole = uninterrupted(cosine)
    run(spec, [cosine], StopAt("trained 2/2"))
    assert resume() == 0
    same_run(whole, only_run())
    pairs = [tuple(map(float, line.split())) for line in Path("rates").read_text().splitlines()]
    trained = [(one, other) for one, other in pairs if one or other]
    assert len({one for one, _ in trained}) > 3
    assert all(other == 8 * one for one, other in trained)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_passed_over(spec, uninterrupted, capsys):
    whole = uninterrupted()
    run(spec, ["checkpoint.every=2 updates"], StopAt("trained 2/9"))
    directory = only_run()
    latest = checkpoint.folder_of(directory, checkpoint.numbers(directory)[0])
    (latest / "stage-002.safetensors").write_bytes(b"")
    assert resume() == 0
    assert f"{latest} is not used: stage-002.safetensors has 0 bytes" in capsys.readouterr().err
    same_run(whole, directory)


def test_where_events_are_lost_the_checkpoint_before_is_taken(spec, uninterrupted, capsys):
    """The run stopped with "has lost events", and the older checkpoint was not tried."""
    whole = uninterrupted()
    run(spec, ["checkpoint.every=1 epoch"], StopAt("trained 3/9"))
    directory = only_run()
    latest, before = checkpoint.numbers(directory)[:2]
    kept = checkpoint.read_manifest(directory, latest).position["metrics_bytes"] - 1
    with (directory / "metrics.jsonl").open("r+b") as file:
        file.truncate(kept)
    assert resume() == 0
    said = capsys.readouterr().err
    assert f"{latest} is not used: metrics.jsonl has {kept} bytes, and {kept + 1} were there at the checkpoint" in said
    assert f"continues before micro-batch {before}" in said
    same_run(whole, directory)


def test_where_every_checkpoint_is_damaged_nothing_is_loaded(interrupted, capsys):
    directory = interrupted
    weights = weights_bytes(directory)
    for path in directory.glob("checkpoints/*/manifest.json"):
        path.write_text("{")
    assert resume() == 2
    assert "is not used: manifest.json is damaged" in capsys.readouterr().err
    assert weights_bytes(directory) == weights


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["data.batch=64"], "is of another run: data.batch: 128 then, 64 now"),
        (["data.options.test_share=0.5"], "micro-batches of an epoch: 11 then, 7 now"),
        (["optimizer.name=adamw"], 'optimizer.name: "sgd" then, "adamw" now'),
        (["run.epochs=0"], "run.epochs"),
        (["graph.node.head.name=top", "partition.stages=per-block"], "parameters of top: unset then, 250 now"),
        (["graph.node.stem.options.features=14"], "parameters of stem: 1560 then, 1820 now"),
    ],
)
def test_another_network_is_refused(interrupted, capsys, settings, reason):
    assert resume("latest", *(word for setting in settings for word in ("--set", setting))) == 2
    assert reason in capsys.readouterr().err
    assert summary_of(interrupted)["status"] == "interrupted"


def test_other_versions_are_told(interrupted, capsys):
    for path in interrupted.glob("checkpoints/*/manifest.json"):
        manifest = json.loads(path.read_text())
        del manifest["sha256"]
        manifest["versions"]["torch"] = "1.0"
        path.write_text(json.dumps({**manifest, "sha256": checkpoint.digest_of(manifest)}))
    assert resume() == 0
    assert "of other versions, so the last bits may differ: torch: 1.0 then" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["run"], "Give SPEC, or --resume RUN"),
        (["run", "small.toml", "--resume", "runs"], "Give SPEC, or --resume RUN"),
        (["run", "small.toml", "--max-restarts", "2"], "--max-restarts needs --processes"),
    ],
)
def test_usage(spec, capsys, words, reason):
    assert main(words) == 2
    assert reason in capsys.readouterr().err

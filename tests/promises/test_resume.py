"""Interrupted and resumed is uninterrupted, to the bit, whatever interrupted the run; and whoever takes up a run is told what has changed since."""

import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import petra_graph as pg
from petra_graph.cli.main import main
from petra_graph.errors import RunFailed
from petra_graph.plugins.callback import Listener
from petra_graph.record import checkpoint
from petra_graph.record.run_directory import locked
from petra_graph.training.run import run
from tests.support.runs import (
    MICRO_BATCHES,
    SPEC,
    StopAt,
    only_run,
    overrides,
    result_of,
    summary_of,
    weights_bytes,
    without_times,
)

EPOCHS = 2
STAGES = ("partition.stages=2", 'partition.devices=["cpu"]')
"""Two in place of four, with other delays."""


@pytest.fixture(scope="module")
def _interrupted_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted")
    (folder / "small.toml").write_text(SPEC)
    run(str(folder / "small.toml"), [f"run.directory={folder}/runs"], StopAt("trained 2/3"))
    return only_run(folder / "runs")


@pytest.fixture
def interrupted(spec, here, _interrupted_once):
    """A run of the specification that was interrupted in its second epoch, in `runs`."""
    return Path(shutil.copytree(_interrupted_once, Path("runs") / _interrupted_once.name))


def resume(directory: Path | str = "latest", *settings: str) -> int:
    return main(["run", "--resume", str(directory), *overrides(*settings)])


# --- the same run ----------------------------------------------------------------------------------------------------

ANYWHERE = ("trained 1/6", "trained 1/11", "evaluating 1", "ended 1", "trained 2/5")


def test_interrupted_anywhere_again_and_again(spec, whole_run):
    """Also before a micro-batch more has been trained."""
    run(spec, (), StopAt("trained 1/1"))
    for call in ANYWHERE:
        directory = only_run()
        assert run(str(directory / "resolved.toml"), (), StopAt(call), directory).interrupted is not None
    assert resume() == 0
    assert result_of(only_run()) == result_of(whole_run(SPEC))
    assert len(summary_of(only_run())["resumed_from"]) == 1 + len(ANYWHERE)


def test_a_run_that_flushes_stops_behind_a_window(spec, whole_run):
    flushed = ("method.name=1f1b-flush", "method.accumulation=8")
    run(spec, flushed, StopAt("trained 1/2"))
    assert checkpoint.numbers(only_run()) == [8]
    assert resume() == 0
    assert result_of(only_run()) == result_of(whole_run(SPEC, *flushed))


def test_every_checkpoint(spec, whole_run):
    """Of a run that nothing interrupted: whichever is gone on with, the end is the same."""
    settings = ("optimizer.name=adamw", "precision.buffer_dtype=int8", "data.workers=1", "checkpoint.every=2 updates")
    whole = whole_run(SPEC, *settings, "callback=[{name='probe', options={per_epoch=3}}]", "checkpoint.keep=9")
    within_epochs = [at for at in checkpoint.numbers(whole) if at % MICRO_BATCHES]
    assert within_epochs
    for at in within_epochs:
        copied = Path("copies") / str(at)
        shutil.copytree(whole, copied)
        checkpoint.keep_only(copied, [at])
        assert resume(copied) == 0
        assert result_of(copied) == result_of(whole)


BESIDE = ["checkpoint={ every = '2 updates', keep = 2 }", "callback=[{ name = 'tensorboard' }, { name = 'ema' }]"]


@pytest.mark.parametrize("beside", BESIDE)
def test_checkpoints_and_what_keeps_values_and_averages_change_no_bit(spec, whole_run, beside):
    run(spec, [beside], Listener())
    assert weights_bytes(only_run()) == weights_bytes(whole_run(SPEC))
    assert without_times(only_run()) == without_times(whole_run(SPEC))
    if beside.startswith("checkpoint"):  # old ones go; windows have three micro-batches, an epoch's last one two
        assert checkpoint.numbers(only_run()) == [22, 17]
    else:
        assert {path.name for path in only_run().iterdir()} >= {"tensorboard", "weights-ema.safetensors"}


def test_a_run_that_is_done_can_be_longer(spec, whole_run, capsys):
    whole = whole_run(SPEC, "run.epochs=3", "checkpoint.every=1 epoch")
    run(spec, ["checkpoint.every=1 epoch"], Listener())
    assert resume("latest", "run.epochs=3") == 0
    assert weights_bytes(only_run()) == weights_bytes(whole)
    said = capsys.readouterr().err
    assert "continues before micro-batch 22" in said
    assert "\nchanged: run.epochs: 2 then, 3 now\n" in said, "what differs is named"


# --- under other stages and options ----------------------------------------------------------------------------------


def test_under_other_stages_the_micro_batches_in_flight_are_discarded(interrupted, capsys):
    """Four stages with staleness 3, 2, 1 and 0 become two."""
    at = checkpoint.numbers(interrupted)[0]
    before = load_file(interrupted / "weights.safetensors")
    assert resume("latest", *STAGES) == 0
    said = capsys.readouterr().err
    assert f"continues before micro-batch {at}" in said
    assert "micro-batches in flight or waiting for an update and fills" in said
    after = summary_of(interrupted)
    assert (after["stages"], after["micro_batches"], after["status"]) == (2, EPOCHS * MICRO_BATCHES, "done")
    assert load_file(interrupted / "weights.safetensors").keys() == before.keys()
    assert after["test"]["top1"] > 0.3


def test_interrupted_again_after_other_stages(spec):
    """The operations of that epoch are counted from where the pipeline filled anew, its windows from the epoch's start."""
    run(spec, (), StopAt("trained 1/5"))
    for name in ("whole", "again"):
        shutil.copytree(only_run(), name)
    assert resume("whole", *STAGES) == 0
    assert run("again/resolved.toml", STAGES, StopAt("trained 1/9"), Path("again")).interrupted is not None
    assert resume("again") == 0
    assert weights_bytes("again") == weights_bytes("whole")


USED = set()


class OfStage(torch.optim.SGD):
    def step(self):
        USED.add(self.param_groups[0]["momentum"])
        super().step()


def by_stage(groups, *, lr=0.01, stage=None):
    return OfStage(groups.param_groups(weight_decay=0.0), lr=lr, momentum=stage.steady / 10 if stage else 0.0)


def test_under_other_stages_an_optimizer_has_what_it_is_built_with_there(spec):
    """A momentum by stage was that of the stage that had been there."""
    run(spec, [f"optimizer.name={__name__}:by_stage", "method.accumulation=1"], StopAt("trained 1/4"))
    USED.clear()
    assert resume("latest", 'partition.stages=[["stem"], ["rev.0"], ["rev.1", "head"]]', STAGES[1]) == 0
    assert sorted(USED) == pytest.approx([0.0, 0.1, 0.2])


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_one_process_alone_goes_on_with_a_run(interrupted, capsys):
    with locked(interrupted):
        assert resume() == 1
    assert "another process writes the run" in capsys.readouterr().err
    assert resume() == 0


def test_numbers_that_are_not_finite_are_in_no_checkpoint(spec, monkeypatch):
    """Where processes are far apart, a stage may pass a cut with ruined parameters before the head sees it."""
    write = checkpoint.write_stage

    def ruined(directory, at, tensors, facts):
        ruins = {name: one * float("nan") for name, one in tensors.items() if at > MICRO_BATCHES}
        return write(directory, at, {**tensors, **ruins}, facts)

    monkeypatch.setattr(checkpoint, "write_stage", ruined)
    with pytest.raises(RunFailed, match=f"is in no checkpoint before forward {2 * MICRO_BATCHES}: "):
        run(spec, ["checkpoint.every=1 epoch"], Listener())
    assert checkpoint.numbers(only_run()) == [MICRO_BATCHES]


def test_a_damaged_checkpoint_is_passed_over(spec, whole_run, capsys):
    run(spec, ["checkpoint.every=1 epoch"], StopAt("trained 2/3"))
    latest, before = checkpoint.numbers(only_run())
    (folder := checkpoint.folder_of(only_run(), latest)).joinpath("stage-002.safetensors").write_bytes(b"")
    assert resume() == 0
    said = capsys.readouterr().err
    assert f"{folder} is not used: stage-002.safetensors is damaged" in said
    assert f"continues before micro-batch {before}" in said
    assert result_of(only_run()) == result_of(whole_run(SPEC))


REFUSED = [
    (["data.batch=64"], "is of another run: data.batch: 128 then, 64 now"),
    (["data.options.test_share=0.5"], "micro-batches of an epoch: 11 then, 7 now"),
    (["run.epochs=1"], "is of epoch 2, and run.epochs is 1"),
    (["optimizer.name=adamw"], 'optimizer.name: "sgd" then, "adamw" now'),
    (["graph.node.head.name=top", "partition.stages=per-block"], "parameters of head: 250 then, unset now"),
    (["graph.node.1.kind=buffered"], 'kind: "reversible" then, "buffered" now'),
]


@pytest.mark.parametrize(("settings", "reason"), REFUSED)
def test_another_network_or_data_is_refused(interrupted, capsys, settings, reason):
    assert resume("latest", *settings) == 2
    assert reason in capsys.readouterr().err
    assert summary_of(interrupted)["status"] == "interrupted"


# --- what has changed since, and what stays as it is -----------------------------------------------------------------

NET = """\
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
"""
MODULE = """\
[architecture]
name = "module"
options = { build = "net:Net" }
[data]
name = "digits"
batch = 128
[run]
epochs = 1
[checkpoint]
every = "1 epoch"
"""


def files_of(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


@pytest.fixture
def changed_code(write, capsys):
    """A network whose code has been changed after its run, and so computes something else with the same weights."""
    write("net.py", NET)
    run(write("spec.toml", MODULE), (), Listener())
    # Of another size: within a second, Python tells compiled code apart by it alone.
    write("net.py", NET.replace("ReLU", "Sigmoid"))
    sys.modules.pop("net")
    capsys.readouterr()
    return "changed since the training: the network: for the same samples and weights its outputs differ by "


def test_a_network_that_computes_something_else_is_used_only_where_that_is_meant(changed_code, capsys):
    finished, digit = pg.open_run(only_run()), np.zeros((1, 8, 8), np.uint8)
    for use in (finished.load, partial(finished.predict, digit)):
        with pytest.raises(pg.SpecError, match=changed_code):
            use()
        with pytest.warns(UserWarning, match=changed_code):
            use(changed=True)
    command = ["export", "latest", "--format", "torch-export"]
    assert main(command) == 2
    refused = capsys.readouterr()
    assert refused.out == ""
    assert f"has {changed_code}" in refused.err
    assert "--changed, in Python changed=True" in refused.err


def test_an_evaluation_and_a_resume_name_changed_code(changed_code, capsys):
    assert main(["evaluate", "latest"]) == 0
    assert capsys.readouterr().err.startswith(f"warning: {changed_code}")
    assert resume("latest", "run.epochs=2") == 0
    told = capsys.readouterr().err
    assert "\nchanged: run.epochs: 1 then, 2 now\n" in told
    assert "\nwarning: changed since the training before: the network: for the same samples" in told


EARLY = """
[[callback]]
name = "early-stopping"
options = { metric = "train/loss", patience = 1, min_delta = 100.0 }
"""


@pytest.mark.parametrize(("more", "epochs"), [("", 2), (EARLY, 5)])
def test_a_run_that_is_done_or_stopped_early_stays_as_it_is(write, capsys, more, epochs):
    """`method.name` was set on it: from then on the weights of PETRA were those of backpropagation, by all records."""
    run(write("a.toml", SPEC + more), ["checkpoint.every='1 epoch'", f"run.epochs={epochs}"], Listener())
    before = files_of(only_run())
    capsys.readouterr()
    for settings in (("method.name=backprop",), ()):
        assert resume("latest", *settings) == 0
        assert capsys.readouterr().err.startswith("nothing is left to train")
        assert files_of(only_run()) == before

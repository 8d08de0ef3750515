"""Averages of parameters: their definition, wherever the stages are and whatever interrupts the run."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from petra_graph.catalog.callbacks import Averages
from petra_graph.cli.main import main
from petra_graph.plugins.callback import Listener
from petra_graph.training.run import run
from tests.support.runs import SPEC, StopAt, named, only_run

AVERAGED = SPEC + named("callback", "ema") + "options = { decay = 0.75 }\n"


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 1.25, 1.6875]), (2, [None, 2.0, 2.0])])
def test_the_average_follows(every, expected):
    parameter = torch.zeros(2)
    made = Averages({"node/weight": parameter}, decay=0.75, every=every)
    for update, value in enumerate(expected, start=1):
        parameter += 1
        made.updated(update)
        found = made.state().get("node/weight")
        assert (None if found is None else found.tolist()) == (None if value is None else [value, value])


def test_without_memory_the_average_is_the_run_s_weights(write):
    run(write("small.toml", AVERAGED), ["callback.ema.options.decay=0"], Listener())
    averages, weights = (load_file(only_run() / f"weights{end}.safetensors") for end in ("-ema", ""))
    assert averages.keys() == weights.keys()
    assert all(torch.equal(averages[name], weights[name]) for name in weights)


def test_under_other_stages_the_average_goes_on(write):
    run(write("small.toml", AVERAGED), ["callback.ema.options.every=1000"], StopAt("trained 2/5"))
    assert not (only_run() / "weights-ema.safetensors").exists(), "no update has come to it"
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

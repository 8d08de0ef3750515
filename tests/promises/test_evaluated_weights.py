"""Schedule-free SGD: an optimizer that trains some weights and is judged by others, in whole runs on digits.

The training has the same bits with any number of evaluations, on any processes and after an interruption; whatever reads a run's
weights reads those that were evaluated, and checkpoints hold those that are trained.
"""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from petra_graph.cli.main import main
from petra_graph.inference.evaluate import evaluate_run
from petra_graph.inference.saved_run import SavedRun
from petra_graph.record import checkpoint
from tests.support.runs import MICRO_BATCHES, SPEC, named, only_run, overrides, summary_of, weights_bytes, without_times

MODULE = '''\
import torch
from petra_graph.plugins import Callback

class ScheduleFree(torch.optim.Optimizer):
    """z <- z - lr * gradient(y);  x <- mean of all z;  y = (1 - beta) z + beta x, which is the parameter."""

    def __init__(self, groups, *, lr: float = 0.5, beta: float = 0.9):
        super().__init__([*groups.decayed, *groups.undecayed], {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for y in group["params"]:
                if y.grad is None:
                    continue
                state = self.state[y]
                if not state:
                    state.update(x=y.clone(), z=y.clone(), steps=0)
                state["steps"] += 1
                state["z"].sub_(y.grad, alpha=group["lr"])
                state["x"].lerp_(state["z"], 1 / state["steps"])
                y.copy_(state["z"].lerp(state["x"], group["beta"]))

    def evaluated_weights(self, parameter):
        return self.state.get(parameter, {}).get("x", parameter)

schedule_free = ScheduleFree

class Sees(Callback):
    reads_weights = True
    def started(self, run):
        self.directory = run.directory
    def evaluated_weights(self, epoch, weights):
        torch.save({name: value.clone() for name, value in weights.items()}, self.directory / f"seen-{epoch}.pt")
'''
OPTIMIZER = '[optimizer]\nname = "local_free:schedule_free"\n'
FREE = SPEC.replace("[optimizer]\noptions = { lr = 0.05 }\n", OPTIMIZER)


@pytest.fixture
def spec(write):
    assert OPTIMIZER in FREE
    write("local_free.py", MODULE)
    kept = '[checkpoint]\nevery = "1 epoch"\nbest = "test/top1"\n'
    return write("free.toml", FREE + kept + named("callback", "local_free:Sees"))


def tensors_of(directory, kind):
    """The tensors of a kind in the last checkpoint, of all stages."""
    at, found = 2 * MICRO_BATCHES, {}
    for file in checkpoint.read_manifest(directory, at).files:
        found |= checkpoint.read_stage(directory, at, file)[0]
    return {name: tensor for name, tensor in found.items() if name.startswith(f"{kind}/")}


def test_the_training_is_the_same_with_any_number_of_evaluations(spec):
    assert main(["run", spec]) == 0
    assert main(["run", spec, *overrides("run.evaluate_every=2", "run.directory=once")]) == 0
    for kind in ("parameters", "optimizer", "buffers"):
        one, other = tensors_of(only_run(), kind), tensors_of(only_run("once"), kind)
        assert one.keys() == other.keys()
        assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert weights_bytes(only_run()) == weights_bytes(only_run("once"))
    directories = only_run(), only_run("once")
    one, other = ([event for event in without_times(each) if event[2] == "train/loss"] for each in directories)
    assert one == other


def test_files_have_evaluated_weights_and_checkpoints_trained_ones(spec):
    assert main(["run", spec]) == 0
    directory = only_run()
    weights, optimizer = load_file(directory / "weights.safetensors"), tensors_of(directory, "optimizer")
    trained, seen = tensors_of(directory, "parameters"), torch.load(directory / "seen-2.pt")
    for name in (name.removeprefix("parameters/") for name in trained):
        assert torch.equal(weights[name], optimizer[f"optimizer/{name}/x"])
        assert torch.equal(weights[name], seen[name])
    assert not all(torch.equal(weights[name.removeprefix("parameters/")], value) for name, value in trained.items())
    saved = SavedRun.open(directory)
    assert evaluate_run(saved).means == summary_of(directory)["test"]
    assert evaluate_run(saved, which="latest").means == summary_of(directory)["test"]
    best = max(value for _, _, name, value in without_times(directory) if name == "test/top1")
    assert evaluate_run(saved, which="best").means["top1"] == best

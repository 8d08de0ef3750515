"""A network of one's own has what its run has trained after `load_state_dict` of the exported file, or nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import petra_graph as pg
from petra_graph.errors import RunFailed
from tests.inference.own_networks import Drawn, Remainders

ROWS = {"name": "random", "batch": 16}
ROWS["options"] = {"shape": [8], "dtype": "float32", "classes": 3, "train": 16, "test": 16}
PLAIN_SGD = {"name": "sgd", "options": {"lr": 0.5, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}}


def trained(network, **settings):
    whole = {"method": {"name": "backprop"}, "partition": {"stages": 1}, "optimizer": PLAIN_SGD, "run": {"epochs": 4}}
    return pg.train(pg.make_spec(module=network, data=ROWS, **{**whole, **settings}))


def outputs(run, network):
    """Return what a run's network computes, and what the network's own class does with the exported file."""
    exported = run.export("safetensors")
    assert exported.samples == 8
    own = network().eval()
    own.load_state_dict(load_file(exported.file))
    x = torch.rand(5, 8)
    with torch.no_grad():
        return run.load()(x), own(x)


def test_all_of_a_state_dict_comes_and_goes(here):
    begun = Remainders()
    torch.save(begun.state_dict(), "own.pt")
    run = trained(Remainders, init={"weights": "own.pt"}, checkpoint={"every": "1 epoch"})
    found, expected = outputs(run, Remainders)
    assert torch.equal(found, expected)
    after = load_file(run.directory / "network.safetensors")
    x = torch.rand(5, 8)
    assert torch.equal(run.load(weights="latest")(x), run.load()(x))
    assert torch.equal(after["scale"], begun.scale)
    assert torch.equal(after["unread.weight"], begun.unread.weight)
    assert not torch.equal(after["activation.weight"], begun.activation.weight)
    assert torch.equal(after["activation.weight"], after["body.2.weight"])


def test_what_its_own_class_cannot_have_is_not_written_but_programs_are(here):
    run = trained(Drawn)
    reason = "the network's own class loads the tensors, but its outputs differ"
    with pytest.raises(RunFailed, match=f"nothing is written: {reason}"):
        run.export("safetensors")
    assert not list(Path(run.directory).glob("network.*"))
    assert run.export("torch-export").difference < 1e-5

"""Samples of several named inputs: the first node's block reads them in their order, and the run keeps every promise of one input."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

import petra_graph as pg
from petra_graph.cli.main import main
from petra_graph.inference.evaluate import open_data
from petra_graph.inference.saved_run import SavedRun
from petra_graph.training.data import order
from petra_graph.training.trained_network import Network
from tests.support import ROOT
from tests.support.pages import Page, files_of
from tests.support.runs import only_run, overrides

SHOWN = files_of(Page(ROOT / "plugins" / "guide" / "samples.md"))
PLAIN = (
    "lr_schedule.name=constant",
    "optimizer.options={ lr = 0.05, momentum = 0.0, nesterov = false, weight_decay = 0.0 }",
    "precision.compute=float64",
    "method={ name = 'backprop', schedule = 'sequential' }",
    "run={ epochs = 1, micro_batches = 1 }",
)


@pytest.fixture
def spec(write):
    write("two_inputs.py", SHOWN["two_inputs.py"])
    return write("two_inputs.toml", SHOWN["two_inputs.toml"])


def test_an_update_is_that_of_plain_autograd_and_inputs_are_taken_by_their_names(spec):
    assert main(["run", spec, *overrides(*PLAIN)]) == 0
    saved = SavedRun.open(only_run())
    network, data = Network.of(saved.network, saved.facts), open_data(saved)
    samples, targets = data.train.fetch(order(48, 0, 0)[:8], seed=0, epoch=0)
    assert list(samples) == ["image", "numbers"]
    functional.cross_entropy(network(samples), targets).backward()
    found = load_file(only_run() / "weights.safetensors")
    for name, parameter in network.state_dict(keep_vars=True).items():
        torch.testing.assert_close(found[name], parameter - 0.05 * parameter.grad, rtol=0, atol=1e-14)
    trained = pg.load(only_run())
    assert torch.equal(trained(samples), trained(dict(reversed(samples.items()))))


def test_an_architecture_of_one_input_is_refused_with_the_inputs(spec, write, capsys):
    revnet = '[architecture]\nname = "revnet"\noptions = { depth = 18 }\n[method]'
    assert main(["plan", write("revnet.toml", revnet + SHOWN["two_inputs.toml"].partition("[method]")[2])]) == 2
    said = capsys.readouterr().err
    assert "reads one tensor a sample, and a sample of the data has several inputs: image, numbers" in said

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
from petra_graph.inference.trained_network import Network
from petra_graph.training.data import order
from tests.support import ROOT
from tests.support.pages import Page, files_of
from tests.support.runs import only_run

TOLERANCE = 1e-14
SHOWN = files_of(Page(ROOT / "plugins" / "guide" / "samples.md"))
PLAIN = """
[lr_schedule]
name = "constant"

[optimizer]
options = { lr = 0.05, momentum = 0.0, nesterov = false, weight_decay = 0.0 }

[precision]
compute = "float64"
"""


@pytest.fixture
def spec(write):
    write("two_inputs.py", SHOWN["two_inputs.py"])
    return write("two_inputs.toml", f"{SHOWN['two_inputs.toml']}{PLAIN}")


def weights(directory):
    return load_file(only_run(directory) / "weights.safetensors")


def test_an_update_is_that_of_plain_autograd(spec):
    words = ["method.name=backprop", "method.schedule=sequential", "run.epochs=1", "run.micro_batches=1"]
    assert main(["run", spec, *[word for one in words for word in ("--set", one)]]) == 0
    saved = SavedRun.open(only_run("runs"))
    network, data = Network.of(saved.network, saved.facts), open_data(saved)
    samples, targets = data.train.fetch(order(48, 0, 0)[:8], seed=0, epoch=0)
    assert list(samples) == ["image", "numbers"]
    functional.cross_entropy(network(samples), targets).backward()
    found = weights("runs")
    for name, parameter in network.state_dict(keep_vars=True).items():
        expected = parameter - 0.05 * parameter.grad
        assert torch.allclose(found[name], expected, rtol=0, atol=TOLERANCE), name


def test_inputs_are_taken_by_their_names(spec):
    assert main(["run", spec, "--set", "run.epochs=1"]) == 0
    network = pg.load(only_run("runs"))
    image, numbers = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.ones(2, 3)
    assert torch.equal(network({"image": image, "numbers": numbers}), network({"numbers": numbers, "image": image}))


def test_an_architecture_of_one_input_is_refused_with_the_inputs(spec, write, capsys):
    write(
        "revnet.toml",
        '[architecture]\nname = "revnet"\noptions = { depth = 18 }\n[method]'
        + SHOWN["two_inputs.toml"].partition("[method]")[2],
    )
    assert main(["plan", "revnet.toml"]) == 2
    said = capsys.readouterr().err
    assert "reads one tensor a sample, and a sample of the data has several inputs: image, numbers" in said

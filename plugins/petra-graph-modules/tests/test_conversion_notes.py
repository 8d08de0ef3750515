"""Before a converted network trains, it is said how far its outputs are from the network's own, with the weights that it begins with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import petra_graph
from petra_graph.cli.main import main
from petra_graph.kinds.listener import Listener
from petra_graph.training.prepared_run import prepare
from petra_graph.training.run_notes import difference, graph_pass_notes
from petra_graph.training.training_run import run
from tests.support.runs import SPEC, only_run, weights_bytes

CHAIN = SPEC.replace(
    '"linear-stem"\noptions = { features = 12 }', '"linear-stem"\noptions = { features = 12, streams = 1 }'
)
CHAIN = CHAIN.replace(
    '"rev-mlp"\nrepeat = 2\noptions = { hidden = 12, dropout = 0.1 }', '"residual_layers:Layer"\nrepeat = 4'
)
LAYER = """
from torch import nn
from petra_graph.blocks import Buffered

class Layer(Buffered):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.norm, self.linear = nn.LayerNorm(inputs[0][0]), nn.Linear(inputs[0][0], inputs[0][0])
    def forward(self, x):
        return x + self.linear(self.norm(x)).tanh()
"""


@pytest.fixture
def spec(write):
    write("residual_layers.py", LAYER)
    return write("chain.toml", CHAIN)


def converted(coupling, *more):
    return [f'conversion.coupling="{coupling}"', *more]


def test_it_is_the_distance_of_two_saved_networks(spec):
    still = ["run.epochs=1", "optimizer.options.lr=0"]
    outputs = []
    for name, changes in (("own", []), ("changed", converted("midpoint"))):
        run(spec, [*still, *changes, f"run.directory={name}"], Listener())
        network = petra_graph.load(str(only_run(name))).eval()
        prepared = prepare(spec, converted("midpoint"))
        samples, _ = prepared.opened.data.train.fetch(np.arange(128), seed=0, epoch=0)
        outputs.append(network(samples).detach().double())
    expected = float((outputs[1] - outputs[0]).norm() / outputs[0].norm())
    assert difference(prepared) == pytest.approx(expected, rel=1e-3)
    assert expected > 0.01


def test_it_is_said_before_the_training(spec, capsys):
    assert (
        main(
            ["run", spec, "--dry-run", "--set", 'conversion.coupling="dual-residual"', "--set", "conversion.beta=1e-6"]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert (
        "4 nodes in 1 chain are reversible (dual-residual); for the first micro-batch, the network's output differs"
        in said
    )
    assert list(graph_pass_notes(prepare(spec, []))) == []
    assert list(graph_pass_notes(prepare(spec, converted("none")))) == []


def test_it_is_of_the_weights_that_the_run_begins_with(spec):
    run(spec, ["run.epochs=1", "run.directory=base"], Listener())
    weights = f"init.weights={only_run('base')}"
    begun = prepare(spec, converted("dual-residual", weights))
    assert "8 tensors begin anew" not in begun.initial.said
    assert "7 tensors begin anew" in begun.initial.said
    assert difference(begun) != difference(prepare(spec, converted("dual-residual")))


def test_a_converted_run_is_resumed_resolved_and_loaded(spec):
    changes = converted("dual-residual", 'callback=[{name="dual-residual-schedule", options={updates=3}}]')
    run(spec, changes, Listener())
    again = only_run() / "resolved.toml"
    run(str(again), ["run.directory=again"], Listener())
    assert weights_bytes(only_run("again")) == weights_bytes(only_run())
    weights = load_file(only_run() / "weights.safetensors")
    assert weights["rev.1/beta"].item() == pytest.approx(0.7)
    network = petra_graph.load(str(only_run()))
    assert torch.equal(network.state_dict()["rev.1/linear.weight"], weights["rev.1/linear.weight"])

"""What authors of plugins in a file beside the spec are told: one problem for one mistake, with its node and what they can do."""

from __future__ import annotations

import pytest

from petra_graph.cli.main import main

MODULE = """
import numpy as np
import torch
from torch import nn

from petra_graph.blocks import AdditiveCoupling
from petra_graph.plugins import DataFacts, NodeSpec


class Layer(AdditiveCoupling):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(inputs[0][0], inputs[0][0])

    def residual(self, x):
        return self.linear(x).tanh()


class Orthogonal(Layer):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        nn.utils.parametrizations.orthogonal(self.linear)


class Counts(Layer):
    calls = 0

    def residual(self, x):
        self.calls += 1
        return super().residual(x) / self.calls


def network(middle, facts, **more):
    return (
        NodeSpec(name="stem", block="linear-stem", options={"features": np.int64(6)}),
        *middle,
        NodeSpec(name="head", block="pool-linear", options={"outputs": facts.classes}),
    )


def misspelt(options, facts):
    return network([NodeSpec(name=f"b{index}", block="rev-mpl", kind="reversible") for index in range(12)], facts)


def numbers(options, facts):
    options = {"hidden": np.int64(8)}
    return network([NodeSpec(name="b", block="rev-mlp", repeat=np.int64(2), options=options)], facts)


def counts(options, facts):
    return network([NodeSpec(name="b", block="for_authors:Counts", repeat=12)], facts)


def orthogonal(options, facts):
    return network([NodeSpec(name="b", block="for_authors:Orthogonal", repeat=2)], facts)


class Split:
    def __len__(self):
        return np.int64(24)

    def fetch(self, indices, *, seed, epoch):
        x = torch.stack([torch.full((4,), float(index)) for index in indices])
        return x / 24, torch.tensor([int(index) % 3 for index in indices])


class Data:
    facts = DataFacts(shape=(np.int64(4),), dtype="float32", classes=np.int64(3))

    def __init__(self, options):
        self.train = self.test = Split()


def three(options):
    return 3
"""
SPEC = """\
[architecture]
name = "for_authors:{network}"
[loss]
name = "{loss}"
[data]
name = "for_authors:Data"
batch = 8
[run]
epochs = 1
"""


@pytest.fixture
def told(write, capsys):
    def of(*arguments, network="numbers", loss="cross-entropy"):
        write("for_authors.py", MODULE)
        write("a.toml", SPEC.format(network=network, loss=loss))
        code = main([*arguments, "a.toml"])
        return code, capsys.readouterr().err

    return of


@pytest.mark.parametrize("verb", [["validate"], ["run", "--dry-run"]])
def test_an_unknown_block_of_an_architecture_is_one_problem_with_its_node(verb, told):
    code, text = told(*verb, network="misspelt")
    assert code == 2
    assert text.startswith(
        'a.toml:1: architecture "for_authors:misspelt", node "b0": unknown block "rev-mpl"\n'
        "    [architecture]\n"
        "    help: did you mean 'rev-mlp'? "
    )
    assert text.count("unknown block") == 1


def test_a_block_that_is_wrong_in_twelve_nodes_is_one_problem(told):
    code, text = told("run", "--dry-run", network="counts")
    assert code == 4
    assert (
        'a.toml:1: node "b.0" and 11 more: block "for_authors:Counts" breaks a promise (statistics): calls moved'
        in text
    )
    assert text.count("breaks a promise") == 1


def test_a_block_that_the_meta_device_cannot_build_is_planned_and_tried(told):
    """Torch reads values in `parametrizations.orthogonal`; the network could not be planned."""
    assert told("run", "--dry-run", network="orthogonal")[0] == 0
    assert told("plan", network="orthogonal")[0] == 0


def test_numbers_of_numpy_are_numbers(told):
    assert told("run", "--dry-run")[0] == 0


def test_local_code_is_mended_and_not_reported(told):
    code, text = told("run", "--dry-run", loss="for_authors:three")
    assert code == 4
    assert text == (
        'a.toml:4: loss "for_authors:three" is broken: its build returns an int, not a function (output, target) -> mean loss\n'
        '    name = "for_authors:three"\n'
        "    help: mend its code\n"
    )

"""A block of one stream may return the tensor: every method trains it to the bits of the same block that returns a tuple."""

from __future__ import annotations

import pytest
import torch

import petra_graph as pg
from petra_graph.blocks import Buffered, Head, Reversible
from petra_graph.cli.main import main
from petra_graph.program.method import METHODS
from petra_graph.testing import Trial
from tests.support.kit import kept
from tests.support.runs import only_run, weights_bytes

MODULE = """\
import torch
from torch import nn
from petra_graph.blocks import Buffered, Head, Reversible


class Stem(Buffered):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(inputs[0][0], 6)

    def forward(self, x):
        return {open}self.linear(x).relu(){close}


class Scale(Reversible):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.log = nn.Parameter(torch.zeros(inputs[0]))

    def forward(self, x):
        return {open}x * self.log.exp(){close}

    def inverse(self, y):
        return {open}y * (-self.log).exp(){close}


class Last(Head):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(inputs[0][0], 3)

    def forward(self, x):
        return {open}self.linear(x){close}
"""
SPEC = """\
name = "one"
[[graph.node]]
name = "stem"
block = "{module}:Stem"
[[graph.node]]
name = "scale"
block = "{module}:Scale"
repeat = 2
[[graph.node]]
name = "head"
block = "{module}:Last"
[data]
name = "random"
batch = 8
options = {{ shape = [4], dtype = "float32", classes = 3, train = 40, test = 8 }}
[run]
epochs = 1
directory = "{module}"
"""


class Linear(Buffered):
    def forward(self, x):
        return 2 * x


class Turns(Reversible):
    def forward(self, x):
        return -x

    def inverse(self, y):
        return -y


class Ends(Head):
    def forward(self, x):
        return x.sin()


@pytest.mark.parametrize("block", [Linear, Turns, Ends])
def test_it_keeps_all_promises(block):
    kept(Trial.of(block, [(4,)]))


@pytest.fixture
def pair(here, write):
    for module, marks in (("as_tensor", ("", "")), ("as_tuple", ("(", ",)"))):
        write(f"{module}.py", MODULE.format(open=marks[0], close=marks[1]))
        write(f"{module}.toml", SPEC.format(module=module))


@pytest.mark.parametrize("method", METHODS)
def test_a_run_has_the_same_bits(pair, method):
    for module in ("as_tensor", "as_tuple"):
        assert main(["run", f"{module}.toml", "--set", f"method.name={method}"]) == 0
    assert weights_bytes(only_run("as_tensor")) == weights_bytes(only_run("as_tuple"))


def test_the_network_and_its_export_return_the_same_bits(pair):
    outputs = []
    for module in ("as_tensor", "as_tuple"):
        assert main(["run", f"{module}.toml"]) == 0
        assert main(["export", str(only_run(module)), "--format", "torch-export"]) == 0
        network = pg.load(only_run(module))
        with torch.no_grad():
            outputs.append(network(torch.linspace(-1, 1, 8).view(2, 4)))
    assert torch.equal(*outputs)

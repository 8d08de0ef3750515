"""A reversible block may return other shapes, and another number of streams, than it reads: it is planned and trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import petra_graph

MODULE = '''
from torch import nn

from petra_graph.blocks import Reversible


class Fork(Reversible):
    """One stream to two: a function of it, and itself."""

    streams = 1

    def __init__(self, inputs):
        super().__init__(inputs)
        self.linear = nn.Linear(*inputs[0], *inputs[0])

    def forward(self, x):
        return self.linear(x).tanh(), x

    def inverse(self, y, x):
        return (x,)
'''
SPEC = """
name = "fork"
[[graph.node]]
name = "stem"
block = "linear-stem"
options = { features = 6, streams = 1 }
[[graph.node]]
name = "fork"
block = "forks:Fork"
kind = "reversible"
[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 10 }
[data]
name = "digits"
batch = 128
[precision]
compute = "float64"
[run]
epochs = 1
"""


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("forks.py").write_text(MODULE)


def test_it_is_planned_and_learns_what_backprop_learns(write):
    spec = write("fork.toml", SPEC)
    document = petra_graph.plan(spec, {"method.name": "petra"}).document
    assert [stage["nodes"] for stage in document["stages"]] == [["stem"], ["fork"], ["head"]]
    methods = ("backprop", "reversible-backprop")
    plain, found = (petra_graph.train(spec, {"method.name": method}).load().state_dict() for method in methods)
    for name, expected in plain.items():
        torch.testing.assert_close(found[name], expected, rtol=1e-11, atol=1e-12)

"""A buffer of float64 in a network of float32: kept where the block says so, in training, in the file of weights and in what is loaded."""

from __future__ import annotations

import torch
from safetensors.torch import load_file

import petra_graph as pg
from petra_graph.cli.main import main
from tests.support.runs import SPEC, only_run

CODE = """
import torch
from torch import nn
from petra_graph.blocks import AdditiveCoupling


class Scaled(AdditiveCoupling):
    keep_dtype = ("table",)

    def __init__(self, inputs):
        super().__init__(inputs)
        width = inputs[0][0]
        self.linear = nn.Linear(width, width)
        self.register_buffer("table", torch.linspace(1e-9, 1, width, dtype=torch.float64))

    def residual(self, x):
        return self.linear(x).tanh() * self.table.cos().to(x.dtype)
"""
TEXT = SPEC.replace(
    'block = "rev-mlp"\nrepeat = 2\noptions = { hidden = 12, dropout = 0.1 }', 'block = "kept_types:Scaled"'
)


def test_it_is_kept_where_the_block_says_so(write):
    write("kept_types.py", CODE)
    assert main(["run", write("kept.toml", TEXT)]) == 0
    weights = load_file(only_run() / "weights.safetensors")
    assert torch.equal(weights["rev/table"], torch.linspace(1e-9, 1, 12, dtype=torch.float64))
    buffers = dict(pg.load(only_run()).named_buffers())
    assert [one.dtype for key, one in buffers.items() if key.endswith("table")] == [torch.float64]

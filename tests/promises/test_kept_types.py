"""A buffer of float64 in a network of float32: kept where the block says so, in training, in the file of weights and in what is loaded."""

from __future__ import annotations

import sys

import pytest
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
    {stated}

    def __init__(self, inputs):
        super().__init__(inputs)
        width = inputs[0][0]
        self.linear = nn.Linear(width, width)
        self.register_buffer("table", torch.linspace(1e-9, 1, width, dtype=torch.float64))

    def residual(self, x):
        return self.linear(x).tanh() * self.table.cos().to(x.dtype)
"""


@pytest.fixture
def spec(write):
    def written(stated):
        write("kept_types.py", CODE.format(stated=stated))
        sys.modules.pop("kept_types", None)
        text = SPEC.replace('block = "rev-mlp"', 'block = "kept_types:Scaled"').replace("repeat = 2\n", "")
        return write("kept.toml", text.replace("options = { hidden = 12, dropout = 0.1 }\n", ""))

    yield written
    sys.modules.pop("kept_types", None)


def test_it_is_kept_where_the_block_says_so(spec, capsys):
    assert main(["run", spec('keep_dtype = ("table",)')]) == 0
    assert "(types)" not in capsys.readouterr().err
    name = next(name for name in load_file(only_run() / "weights.safetensors") if name.endswith("/table"))
    table = load_file(only_run() / "weights.safetensors")[name]
    assert torch.equal(table, torch.linspace(1e-9, 1, 12, dtype=torch.float64))
    buffers = dict(pg.load(only_run()).named_buffers())
    assert [one.dtype for key, one in buffers.items() if key.endswith("table")] == [torch.float64]


def test_a_name_of_no_buffer_is_refused(spec, capsys):
    assert main(["run", spec('keep_dtype = ("linear.weight",)'), "--dry-run"]) == 4
    assert "has no buffer 'linear.weight', which its `keep_dtype` names; it has table" in capsys.readouterr().err

"""Targets of any shape are planned as they are trained: a class for each token, for each pixel, or values."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import petra_graph as pg
from petra_graph.cli.main import main
from tests.support.runs import overrides

MODULE = """
import torch
from torch import nn
from petra_graph.blocks import AdditiveCoupling, Buffered, Head


class Tokens(Buffered):
    def __init__(self, inputs):
        super().__init__(inputs)
        self.table = nn.Embedding(11, 12)

    def forward(self, tokens):
        x = self.table(tokens)
        return x, x


class Mixing(AdditiveCoupling):
    def __init__(self, inputs):
        super().__init__(inputs)
        self.attention = nn.Linear(12, 36)

    def residual(self, x):
        q, k, v = self.attention(x).chunk(3, dim=-1)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Logits(Head):
    def __init__(self, inputs):
        super().__init__(inputs)
        self.linear = nn.Linear(24, 11)

    def forward(self, *streams):
        return (self.linear(torch.cat(streams, dim=-1)).transpose(1, 2),)
"""
SPEC = """
name = "tokens"
[[graph.node]]
name = "tokens"
block = "tokens:Tokens"
[[graph.node]]
name = "mixing"
block = "tokens:Mixing"
repeat = 3
[[graph.node]]
name = "logits"
block = "tokens:Logits"
[method]
schedule = "1f1b"
[data]
name = "random"
batch = 4
options = { shape = [8], dtype = "int64", levels = 11, classes = 11, target_shape = [8], train = 32, test = 8 }
"""


@pytest.fixture
def spec(write):
    write("tokens.py", MODULE)
    return write("tokens.toml", SPEC)


def test_a_language_model_is_planned(spec, capsys):
    """`plan` said that the head cannot be trained, though `run` trained it."""
    assert main(["plan", spec, "--json", *overrides("partition.stages=3")]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["timing"]["samples_per_second"] > 0
    assert not any("needs values" in one for one in plan["assumptions"])


def test_a_class_is_predicted_for_each_token(spec, capsys):
    assert main(["run", spec, "--set", "run.epochs=1"]) == 0
    tokens = np.arange(24).reshape(3, 8) % 11
    np.save("texts.npy", tokens)
    capsys.readouterr()
    assert main(["predict", "latest", "texts.npy", "--top", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["index"], one["position"]) for one in found] == [(n, [t]) for n in range(3) for t in range(8)]
    with torch.no_grad():
        expected = pg.load("latest")(torch.as_tensor(tokens)).softmax(1).topk(2, dim=1)
    for key, values in zip(("score", "class"), expected, strict=True):
        listed = [[one[key] for one in row["classes"]] for row in found]
        assert listed == values.transpose(1, 2).flatten(0, 1).tolist()
    assert main(["predict", "latest", "texts.npy", "--top", "1"]) == 0
    assert "texts.npy [2] (7)  " in capsys.readouterr().out

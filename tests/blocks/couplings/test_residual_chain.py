"""Steps of chains of residual blocks keep every promise of a block, and compute what their page says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from petra_graph.blocks import DualResidualEntry, DualResidualStep, MidpointEntry, MidpointStep
from petra_graph.blocks.couplings.residual_chain import coefficient
from petra_graph.testing import Trial
from tests.support.kit import kept

FEATURES = 6
A, B = 0.8, 0.5


class Layer:
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.norm, self.linear, self.dropout = nn.LayerNorm(FEATURES), nn.Linear(FEATURES, FEATURES), nn.Dropout(0.3)
        if isinstance(self, DualResidualEntry | DualResidualStep):
            self.alpha = coefficient(A)
        if isinstance(self, DualResidualStep):
            self.beta = coefficient(B)

    def residual(self, x):
        return (x + self.dropout(self.linear(self.norm(x)))).relu()


class FirstMidpoint(Layer, MidpointEntry): ...


class Midpoint(Layer, MidpointStep): ...


class FirstDual(Layer, DualResidualEntry): ...


class Dual(Layer, DualResidualStep): ...


FORMULAS = {
    FirstMidpoint: lambda b, x: (b(x), x),
    Midpoint: lambda b, x, before: (before + 2 * (b(x) - x), x),
    FirstDual: lambda b, x: (b(x) + (A - 1) * x, x),
    Dual: lambda b, x, before: (b(x) + (A - 1) * x + B * before, x),
}


@pytest.mark.parametrize("block_class", FORMULAS)
def test_every_promise(block_class):
    kept(Trial.of(block_class, [(FEATURES,)] * block_class.streams))


@pytest.mark.parametrize(("block_class", "formula"), FORMULAS.items())
def test_the_formula(block_class, formula):
    streams = [torch.randn(4, FEATURES) for _ in range(block_class.streams)]
    block = block_class([(FEATURES,)] * len(streams), None).eval()
    for found, expected in zip(block(*streams), formula(block.residual, *streams), strict=True):
        assert torch.allclose(found, expected, atol=1e-6)

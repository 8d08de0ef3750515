"""LARS against its formula, written out in numpy; and it continues a checkpoint to the bit."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from petra_graph_vision.lars import lars

from petra_graph.plugins import ParameterGroups
from petra_graph.plugins.kinds import OPTIMIZER
from petra_graph.plugins.registry import discover
from petra_graph.testing import OptimizerTrial
from tests.support.kit import kept


def by_hand(w, gradients, options, *, decay, adapt):
    step = np.zeros_like(w)
    for g in gradients:
        size = np.linalg.norm(w)
        ratio = options.trust * size / (np.linalg.norm(g) + decay * size) if adapt else 1
        step = options.momentum * step + options.lr * ratio * (g + decay * w)
        w = w - step
    return w


def test_three_updates_are_the_formula_and_decay_and_ratio_spare_the_undecayed():
    options = SimpleNamespace(lr=2.0, momentum=0.9, trust=0.01, weight_decay=0.2)
    generator = np.random.default_rng(0)
    start, gradients = generator.standard_normal((2, 4, 3)), generator.standard_normal((3, 2, 4, 3))
    expected = [
        by_hand(start[0], gradients[:, 0], options, decay=options.weight_decay, adapt=True),
        by_hand(start[1], gradients[:, 1], options, decay=0.0, adapt=False),
    ]

    weight, bias = (torch.nn.Parameter(torch.from_numpy(values.copy())) for values in start)
    optimizer = lars(ParameterGroups(decayed=[weight], undecayed=[bias]), **vars(options))
    for of_weight, of_bias in gradients:
        weight.grad, bias.grad = torch.from_numpy(of_weight), torch.from_numpy(of_bias)
        optimizer.step()

    np.testing.assert_allclose(weight.detach(), expected[0], rtol=1e-12)
    np.testing.assert_allclose(bias.detach(), expected[1], rtol=1e-12)


@pytest.mark.parametrize(("weight", "gradient"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_lars_without_a_norm_falls_back_to_momentum(weight, gradient):
    parameter = torch.nn.Parameter(torch.full((3,), weight))
    optimizer = lars(ParameterGroups(decayed=[parameter], undecayed=[]), lr=0.5)
    parameter.grad = torch.full((3,), gradient)
    optimizer.step()
    assert torch.equal(torch.full((3,), weight - 0.5 * gradient), parameter.detach())


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "momentum": 0.0}])
def test_lars_continues_a_checkpoint(options):
    kept(OptimizerTrial.of(discover().resolve(OPTIMIZER, "lars"), {"lr": 0.1, **options}))

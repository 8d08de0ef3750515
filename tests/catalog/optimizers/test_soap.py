"""SOAP: Adam in eigenbases by the formula, written out in numpy, and AdamW for the others."""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from petra_graph.catalog.optimizers.matrix_optimizers import soap
from petra_graph.catalog.optimizers.torch_optimizers import adamw
from petra_graph.plugins import ParameterGroups

ROUNDING = 1e-9
"""Of ten float64 updates, whose eigenvectors are less exact than their matrices."""
SHAPES = [(6, 4), (3, 5), (1, 7), (4, 2, 2, 2), (5,), ()]


def made(dtype=torch.float32, **options):
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in SHAPES]
    groups = ParameterGroups(decayed=parameters[:-1], undecayed=parameters[-1:])
    return parameters, soap(groups, lr=0.01, **options)


def step(parameters, optimizer, number):
    generator = torch.Generator().manual_seed(1 + number)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    optimizer.step()


class ByHand:
    """One matrix, with its own bases by numpy's eigenvectors and factors."""

    def __init__(self, w, options):
        self.w, self.options, self.count = w, options, None
        self.longest = options.max_precond_dim
        self.outer = [np.zeros((side, side)) for side in w.shape]
        self.bases = [np.eye(side) for side in w.shape]

    def follow(self, g):
        beta2 = self.options.betas[1]
        self.outer = [beta2 * a + (1 - beta2) * b for a, b in zip(self.outer, (g @ g.T, g.T @ g), strict=True)]

    def step(self, g):
        options, (beta1, beta2) = self.options, self.options.betas
        left, right = self.bases
        self.w = self.w * (1 - options.lr * options.weight_decay)
        if self.count is None:
            self.w = self.w - options.lr * g / (np.abs(g) + options.eps)
            self.follow(g)
            self.count, self.m, self.v = 0, np.zeros_like(g), np.zeros_like(g)
            for side, outer in enumerate(self.outer):
                if len(outer) <= self.longest:
                    self.bases[side] = np.linalg.eigh(outer)[1][:, ::-1]
            return
        self.count += 1
        self.m = beta1 * self.m + (1 - beta1) * g
        self.v = beta2 * self.v + (1 - beta2) * (left.T @ g @ right) ** 2
        m_hat, v_hat = self.m / (1 - beta1**self.count), self.v / (1 - beta2**self.count)
        self.w = self.w - options.lr * left @ ((left.T @ m_hat @ right) / (np.sqrt(v_hat) + options.eps)) @ right.T
        self.follow(g)
        if (self.count - 1) % options.precondition_frequency == 0:
            self.refresh()

    def refresh(self):
        for side, outer in enumerate(self.outer):
            if len(outer) <= self.longest:
                basis = self.bases[side]
                order = np.argsort(-np.diag(basis.T @ outer @ basis), kind="stable")
                self.bases[side] = np.linalg.qr((outer @ basis)[:, order])[0]
                self.v = np.take(self.v, order, axis=side)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"precondition_frequency": 1},
        {"precondition_frequency": 3, "betas": (0.8, 0.9)},
        {"max_precond_dim": 4},
        {"max_precond_dim": 4, "weight_decay": 0.3, "precondition_frequency": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(5, 4), (3, 4), (4, 4), (4, 5)])
def test_steps_are_the_formula(shape, how):
    """A side is at most one longer than the other: of more directions without a gradient, the first eigenvectors are anyone's."""
    options = {"lr": 0.05, "eps": 1e-6, **how}
    generator = np.random.default_rng(0)
    start, gradients = generator.standard_normal(shape), generator.standard_normal((14, *shape))
    own = {one.name: one.default for one in signature(soap).parameters.values()} | options
    by_hand = ByHand(start, SimpleNamespace(**own))
    parameter = nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = soap(ParameterGroups(decayed=[parameter], undecayed=[]), **options)
    for gradient in gradients:
        by_hand.step(gradient)
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
        np.testing.assert_allclose(parameter.detach().numpy(), by_hand.w, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize(("longest", "rotated"), [(10_000, {0, 1, 2, 3}), (4, {0, 1, 2, 3}), (3, {1, 2}), (2, {2})])
def test_sides_that_are_too_long_have_no_basis_and_matrices_of_two_are_adamws(longest, rotated):
    parameters, optimizer = made(max_precond_dim=longest, weight_decay=0.1, betas=(0.9, 0.99))
    copies = [nn.Parameter(one.detach().clone()) for one in parameters]
    groups = ParameterGroups(decayed=copies[:-1], undecayed=copies[-1:])
    plain = adamw(groups, lr=0.01, weight_decay=0.1, betas=(0.9, 0.99))
    for number in range(4):
        step(parameters, optimizer, number)
        step(copies, plain, number)
    for index, (one, other) in enumerate(zip(parameters, copies, strict=True)):
        state, sides = optimizer.state[one], one.flatten(1).shape if one.dim() > 1 else ()
        assert torch.equal(one, other) == (index not in rotated)
        if index in rotated:
            assert [f"{side}_basis" in state for side in ("left", "right")] == [side <= longest for side in sides]

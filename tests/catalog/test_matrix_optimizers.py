"""Muon: torch's own steps of matrices. SOAP: Adam in eigenbases by the formula, written out in numpy. AdamW's for the others of both."""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from petra_graph.catalog.optimizers.matrix_optimizers import muon, soap
from petra_graph.catalog.optimizers.torch_optimizers import adamw
from petra_graph.plugins import ParameterGroups

MATRIX_SHAPES = [(6, 4), (3, 8), (5, 5), (1, 7), (7, 1), (4, 2, 3, 3), (6, 5, 1)]
OTHER_SHAPES = [(5,), (), (9, 4)]
"""The last is a table."""
HOW = [
    {"nesterov": True, "adjust_lr": "match_rms_adamw", "weight_decay": 0.1},
    {"nesterov": False, "adjust_lr": "original", "weight_decay": 0.0, "ns_steps": 1},
]
ROUNDING = 1e-9
"""Of ten float64 updates, whose eigenvectors are less exact than their matrices."""
SHAPES = [(6, 4), (3, 5), (1, 7), (4, 2, 2, 2), (5,), ()]


def drawn(shapes, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def step(parameters, optimizer, number):
    for one, gradient in zip(parameters, drawn([one.shape for one in parameters], 1 + number), strict=True):
        one.grad = gradient.to(one.dtype)
    optimizer.step()


def of_muon(dtype=torch.float32, **options):
    """Return matrices and other parameters, and an optimizer of them all."""
    made = [nn.Parameter(one) for one in drawn([*MATRIX_SHAPES, *OTHER_SHAPES], dtype=dtype)]
    matrices, others = made[: len(MATRIX_SHAPES)], made[len(MATRIX_SHAPES) :]
    groups = ParameterGroups(decayed=[*others[1:], *matrices], undecayed=[others[0]], tables=[others[2]])
    return matrices, others, muon(groups, lr=0.01, **options)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has it since 2.9")
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_matrices_are_torchs_to_the_bit(how, dtype):
    matrices, others, optimizer = of_muon(dtype, **how)
    flat = [nn.Parameter(one.detach().flatten(1).clone()) for one in matrices]
    of_torch = {key: value for key, value in how.items() if key != "adjust_lr"}
    theirs = torch.optim.Muon(flat, lr=0.01, momentum=0.95, adjust_lr_fn=how["adjust_lr"], **of_torch)
    for number in range(10):
        step([*matrices, *others], optimizer, number)
        for own, parameter in zip(flat, matrices, strict=True):
            own.grad = parameter.grad.flatten(1).clone()
        theirs.step()
        for own, parameter in zip(flat, matrices, strict=True):
            assert torch.equal(own, parameter.flatten(1))
            assert torch.equal(theirs.state[own]["momentum_buffer"], optimizer.state[parameter]["momentum_buffer"])


def test_the_others_are_adamws_to_the_bit():
    options = {"weight_decay": 0.1, "betas": (0.8, 0.99)}
    matrices, others, optimizer = of_muon(**options)
    copies = [nn.Parameter(one.detach().clone()) for one in others]
    plain = adamw(ParameterGroups(decayed=copies[1:], undecayed=copies[:1]), lr=0.01, **options)
    for number in range(10):
        step([*matrices, *others], optimizer, number)
        for own, parameter in zip(copies, others, strict=True):
            own.grad = parameter.grad.clone()
        plain.step()
        assert all(map(torch.equal, copies, others))


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
    options = {"lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.99)}
    parameters, copies = ([nn.Parameter(one) for one in drawn(SHAPES)] for _ in range(2))
    optimizer = soap(
        ParameterGroups(decayed=parameters[:-1], undecayed=parameters[-1:]), max_precond_dim=longest, **options
    )
    plain = adamw(ParameterGroups(decayed=copies[:-1], undecayed=copies[-1:]), **options)
    for number in range(4):
        step(parameters, optimizer, number)
        step(copies, plain, number)
    for index, (one, other) in enumerate(zip(parameters, copies, strict=True)):
        state, sides = optimizer.state[one], one.flatten(1).shape if one.dim() > 1 else ()
        assert torch.equal(one, other) == (index not in rotated)
        if index in rotated:
            assert [f"{side}_basis" in state for side in ("left", "right")] == [side <= longest for side in sides]

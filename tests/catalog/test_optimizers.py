"""Optimizers against their formulas, written out in numpy; and learning-rate factors, update by update."""

from __future__ import annotations

from inspect import signature
from math import sqrt
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.catalog.lr_schedules import constant, cosine, step
from petra_graph.catalog.optimizers import adam, adamw, muon, sgd
from petra_graph.plugins import ParameterGroups
from petra_graph.plugins.stage_facts import Horizon

ROUNDING = 1e-12
"""Of a few float64 updates."""
ALL_OPTIMIZERS = [
    (sgd, {"weight_decay": 0.1}),
    (adam, {"weight_decay": 0.1}),
    (adamw, {"weight_decay": 0.1}),
    (muon, {"weight_decay": 0.1}),
]
ids = [build.__name__ for build, _ in ALL_OPTIMIZERS]


def by_hand_sgd(w, gradients, options, *, decay):
    buffer = None
    for gradient in gradients:
        g = gradient + decay * w
        buffer = g if buffer is None else options.momentum * buffer + g
        w = w - options.lr * (g + options.momentum * buffer if options.nesterov else buffer)
    return w


def by_hand_adam(w, gradients, options, *, decay, decoupled=False):
    first = second = np.zeros_like(w)
    beta1, beta2 = options.betas
    for t, gradient in enumerate(gradients, start=1):
        g = gradient if decoupled else gradient + decay * w
        w = w - options.lr * decay * w if decoupled else w
        first, second = beta1 * first + (1 - beta1) * g, beta2 * second + (1 - beta2) * g**2
        w = w - options.lr * (first / (1 - beta1**t)) / (np.sqrt(second / (1 - beta2**t)) + options.eps)
    return w


def by_hand_adamw(w, gradients, options, **how):
    return by_hand_adam(w, gradients, options, decoupled=True, **how)


@pytest.mark.parametrize(
    ("by_hand", "build", "options"),
    [
        (by_hand_sgd, sgd, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.2}),
        (by_hand_sgd, sgd, {"lr": 0.1, "momentum": 0.9, "nesterov": False, "weight_decay": 0.2}),
        (by_hand_sgd, sgd, {"lr": 0.1, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}),
        (by_hand_adam, adam, {"lr": 0.1, "betas": (0.8, 0.99), "weight_decay": 0.2}),
        (by_hand_adamw, adamw, {"lr": 0.1, "betas": (0.8, 0.99), "weight_decay": 0.2}),
    ],
)
def test_three_updates_are_the_formula_and_decay_spares_the_undecayed(by_hand, build, options):
    generator = np.random.default_rng(0)
    start = generator.standard_normal((2, 4, 3))
    gradients = generator.standard_normal((3, 2, 4, 3))
    own = SimpleNamespace(**{one.name: one.default for one in signature(build).parameters.values()} | options)
    expected = [
        by_hand(start[0], gradients[:, 0], own, decay=own.weight_decay),
        by_hand(start[1], gradients[:, 1], own, decay=0.0),
    ]

    weight, bias = (torch.nn.Parameter(torch.from_numpy(values.copy())) for values in start)
    optimizer = build(ParameterGroups(decayed=[weight], undecayed=[bias]), **options)
    for of_weight, of_bias in gradients:
        weight.grad, bias.grad = torch.from_numpy(of_weight), torch.from_numpy(of_bias)
        optimizer.step()

    np.testing.assert_allclose(weight.detach(), expected[0], rtol=ROUNDING)
    np.testing.assert_allclose(bias.detach(), expected[1], rtol=ROUNDING)


@pytest.mark.parametrize(("build", "options"), ALL_OPTIMIZERS, ids=ids)
@pytest.mark.parametrize("full", ["decayed", "undecayed", "neither"])
def test_a_group_may_be_empty(build, options, full):
    parameter = torch.nn.Parameter(torch.ones(3))
    groups = {"decayed": [], "undecayed": []} | {full: [parameter]}
    optimizer = build(ParameterGroups(decayed=groups["decayed"], undecayed=groups["undecayed"]), **options)
    parameter.grad = torch.ones(3)
    optimizer.step()
    assert bool((parameter == 1).all()) == (full == "neither")


# --- Muon ---


MATRIX_SHAPES = [(6, 4), (3, 8), (5, 5), (1, 7), (7, 1), (4, 2, 3, 3), (6, 5, 1)]
OTHER_SHAPES = [(5,), (), (9, 4)]
"""The last is a table."""


def of_muon(dtype=torch.float32, **options):
    """Return matrices and other parameters, and an optimizer of them all."""
    draw = torch.Generator().manual_seed(0)
    shapes = [*MATRIX_SHAPES, *OTHER_SHAPES]
    made = [torch.nn.Parameter(torch.randn(shape, generator=draw, dtype=dtype)) for shape in shapes]
    matrices, others = made[: len(MATRIX_SHAPES)], made[len(MATRIX_SHAPES) :]
    groups = ParameterGroups(decayed=[*others[1:], *matrices], undecayed=[others[0]], tables=[others[2]])
    return matrices, others, muon(groups, lr=0.01, **options)


def differentiated(parameters):
    for one in parameters:
        one.grad = torch.randn(one.shape, dtype=one.dtype)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has it since 2.9")
@pytest.mark.parametrize("how", [{"nesterov": True, "weight_decay": 0.1}, {"nesterov": False, "weight_decay": 0.0}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_matrices_are_torchs_to_the_bit(how, dtype):
    matrices, others, optimizer = of_muon(dtype, **how)
    flat = [torch.nn.Parameter(one.detach().flatten(1).clone()) for one in matrices]
    theirs = torch.optim.Muon(flat, lr=0.01, momentum=0.95, adjust_lr_fn="match_rms_adamw", **how)
    for _ in range(10):
        differentiated([*matrices, *others])
        optimizer.step()
        for own, parameter in zip(flat, matrices, strict=True):
            own.grad = parameter.grad.flatten(1).clone()
        theirs.step()
        for own, parameter in zip(flat, matrices, strict=True):
            assert torch.equal(own, parameter.flatten(1))
            assert torch.equal(theirs.state[own]["momentum_buffer"], optimizer.state[parameter]["momentum_buffer"])


def test_the_others_are_adamws_to_the_bit():
    options = {"weight_decay": 0.1, "betas": (0.8, 0.99)}
    matrices, others, optimizer = of_muon(**options)
    copies = [torch.nn.Parameter(one.detach().clone()) for one in others]
    plain = adamw(ParameterGroups(decayed=copies[1:], undecayed=copies[:1]), lr=0.01, **options)
    for _ in range(10):
        differentiated([*matrices, *others])
        optimizer.step()
        for own, parameter in zip(copies, others, strict=True):
            own.grad = parameter.grad.clone()
        plain.step()
        assert all(map(torch.equal, copies, others))


# --- learning-rate factors ---


HALF = 1 / sqrt(2)


def horizon(updates, *, per_epoch=2, warmup=0):
    return Horizon(updates=updates, updates_per_epoch=per_epoch, warmup_updates=warmup)


def factors(build, options, horizon):
    return [build(u, horizon, **options) for u in range(horizon.updates)]


@pytest.mark.parametrize(
    ("expected", "build", "options", "horizon"),
    [
        ([1, 1, 1, 1], constant, {}, horizon(4)),
        ([1, 1, 0.1, 0.1, 0.01, 0.01], step, {"milestones": (1, 2)}, horizon(6)),
        # Milestones count from the run's start: warm-up moves nothing.
        ([1, 1, 0.1, 0.1, 0.01, 0.01], step, {"milestones": (1, 2)}, horizon(6, warmup=3)),
        ([1, 0.5, 0.5, 0.25], step, {"milestones": (0.5, 1.5), "gamma": 0.5}, horizon(4)),
        ([1, 1, 1, 1], step, {"milestones": ()}, horizon(4)),
        ([1, 1, 1, 1], step, {"milestones": (90,)}, horizon(4)),
        ([1, (1 + HALF) / 2, 0.5, (1 - HALF) / 2], cosine, {}, horizon(4)),
        ([1, 1, 1, (1 + HALF) / 2, 0.5, (1 - HALF) / 2], cosine, {}, horizon(6, warmup=2)),
        ([1, 0.6], cosine, {"final": 0.2}, horizon(2)),
    ],
)
def test_factors(expected, build, options, horizon):
    assert expected == pytest.approx(factors(build, options, horizon), abs=1e-12)


def test_a_fraction_of_an_epoch_meets_its_update_in_spite_of_rounding():
    # 0.7 * 10 is 7.000000000000001 in binary; the drop belongs to update 7, not 8.
    assert factors(step, {"milestones": (0.7,)}, horizon(10, per_epoch=10))[6:8] == [1.0, 0.1]


@given(updates=st.integers(1, 300), warmup=st.integers(0, 400))
def test_decay_starts_at_one_never_rises_and_is_never_zero_within_the_run(updates, warmup):
    values = factors(cosine, {}, horizon(updates, warmup=warmup))
    assert values[0] == 1.0
    assert values == sorted(values, reverse=True)
    assert values[-1] > 0
    assert all(value == 1.0 for value in values[: warmup + 1])

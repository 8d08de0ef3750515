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
from petra_graph.catalog.optimizers.matrix_optimizers import muon, soap
from petra_graph.catalog.optimizers.torch_optimizers import adam, adamw, nadam, sgd
from petra_graph.plugins import ParameterGroups
from petra_graph.plugins.stage_facts import Horizon

ROUNDING = 1e-12
"""Of a few float64 updates."""
ALL_OPTIMIZERS = [
    (sgd, {"weight_decay": 0.1}),
    (adam, {"weight_decay": 0.1}),
    (adamw, {"weight_decay": 0.1}),
    (nadam, {"weight_decay": 0.1}),
    (muon, {"weight_decay": 0.1}),
    (soap, {"weight_decay": 0.1}),
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


def by_hand_nadam(w, gradients, options, *, decay):
    first = second = np.zeros_like(w)
    product, (beta1, beta2) = 1.0, options.betas
    for t, g in enumerate(gradients, start=1):
        mu, following = (beta1 * (1 - 0.96 ** (at * options.momentum_decay) / 2) for at in (t, t + 1))
        product = float(np.float32(product) * np.float32(mu))  # torch keeps it so
        w = w - options.lr * decay * w
        first, second = beta1 * first + (1 - beta1) * g, beta2 * second + (1 - beta2) * g**2
        mean = following * first / (1 - product * following) + (1 - mu) * g / (1 - product)
        w = w - options.lr * mean / (np.sqrt(second / (1 - beta2**t)) + options.eps)
    return w


@pytest.mark.parametrize(
    ("by_hand", "build", "options"),
    [
        (by_hand_sgd, sgd, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.2}),
        (by_hand_sgd, sgd, {"lr": 0.1, "momentum": 0.9, "nesterov": False, "weight_decay": 0.2}),
        (by_hand_sgd, sgd, {"lr": 0.1, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}),
        (by_hand_adam, adam, {"lr": 0.1, "betas": (0.8, 0.99), "weight_decay": 0.2}),
        (by_hand_adamw, adamw, {"lr": 0.1, "betas": (0.8, 0.99), "weight_decay": 0.2}),
        (by_hand_nadam, nadam, {"lr": 0.1, "betas": (0.8, 0.99), "weight_decay": 0.2, "momentum_decay": 0.5}),
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


@pytest.mark.parametrize(
    ("steady", "stages", "beta1"),
    [(0.0, 4, 0.9), (3.0, 4, 0.9 + 3 * 0.09 / 4), (1.5, 4, 0.9 + 1.5 * 0.09 / 4), (6.0, 4, 0.99), (0.0, 1, 0.9)],
)
def test_nadams_first_beta_rises_with_the_delay_of_the_stage(steady, stages, beta1):
    groups = ParameterGroups(decayed=[torch.nn.Parameter(torch.ones(3))], undecayed=[])
    stage = SimpleNamespace(steady=steady, stages=stages)
    by_stage, fixed = (nadam(groups, beta1_by_stage=given, stage=stage) for given in (True, False))
    assert by_stage.param_groups[0]["betas"] == pytest.approx((beta1, 0.999), rel=ROUNDING)
    assert fixed.param_groups[0]["betas"] == (0.9, 0.999)


def test_a_first_beta_above_the_largest_cannot_rise_to_it():
    with pytest.raises(ValueError, match=r"at most 0\.99"):
        nadam(ParameterGroups(decayed=[], undecayed=[]), betas=(0.995, 0.999), beta1_by_stage=True)


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

"""The spike of Muon, which looks further ahead: the formula, and AdamW's own spike of all other parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from petra_graph_delay.spike_compensation import Spike
from stepping import made, set_delay, step
from torch import nn

from petra_graph.catalog.optimizers.declared_optimizers import AdamWOptions, MuonOptions
from petra_graph.catalog.optimizers.muon import muon
from petra_graph.catalog.optimizers.torch_optimizers import adam
from petra_graph.kinds.optimizer import ParameterGroups

ROUGH = 2**-4
"""Of Newton-Schulz steps in bfloat16, which enlarge the rounding of small singular values."""
MATRICES = slice(2, 5)
"""Of the parameters of `made`."""


def groups(parameters):
    return ParameterGroups(decayed=parameters[MATRICES], undecayed=parameters[:2])


def plain(parameters, lr, **options):
    return muon(groups(parameters), MuonOptions(lr=lr, **options))


def spiked(parameters, lr, **options):
    return Spike(plain(parameters, lr, **options))


def orthogonal_by_hand(matrix, steps):
    x = matrix / np.linalg.norm(matrix)
    left, values, right = np.linalg.svd(x, full_matrices=False)
    for _ in range(steps):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left @ np.diag(values) @ right


def late_by_hand(w, gradients, delay, *, lr, momentum, nesterov, weight_decay):
    """The spike, as SGD has it: v = m v + g, and the step a v + b g, whatever its scale."""
    v, ahead = np.zeros_like(w), delay + (1 if nesterov else 0)
    for g in gradients:
        v = momentum * v + g
        kept = momentum**ahead
        step = orthogonal_by_hand(kept * v + (1 - kept) / (1 - momentum) * g, 5)
        w = (1 - lr * weight_decay) * w - lr * 0.2 * max(w.shape) ** 0.5 * step
    return w


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("delay", [0.0, 1.0, 1.5, 5.0])
def test_a_late_gradient_has_its_missed_steps_at_once(delay, nesterov):
    generator = np.random.default_rng(0)
    start, gradients = generator.standard_normal((4, 6)), generator.standard_normal((6, 4, 6))
    how = {"lr": 0.1, "momentum": 0.8, "nesterov": nesterov, "weight_decay": 0.2}
    parameter = nn.Parameter(torch.from_numpy(start.copy()))
    lr = how.pop("lr")
    optimizer = Spike(muon(ParameterGroups(decayed=[parameter], undecayed=[]), MuonOptions(lr=lr, **how)))
    set_delay(optimizer, delay)
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
    expected, without = (late_by_hand(start, gradients, late, lr=lr, **how) for late in (delay, delay + 2))
    near = np.abs(parameter.detach().numpy() - expected).max()
    assert near < ROUGH * 0.1
    assert np.abs(without - expected).max() > 2 * near


def test_at_a_delay_of_one_momentum_is_nesterovs():
    nesterov, late = made(plain, nesterov=True), made(spiked, 1.0, nesterov=False)
    for number in range(10):
        step(*nesterov, number)
        step(*late, number)
    assert all(map(torch.equal, nesterov[0][MATRICES], late[0][MATRICES]))
    assert not torch.equal(nesterov[0][0], late[0][0])  # AdamW has a delay as well


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("delay", [None, 0.0])
def test_without_delay_the_spike_is_none_to_the_bit(delay, nesterov):
    one, same = made(plain, nesterov=nesterov), made(spiked, delay, nesterov=nesterov)
    for number in range(10):
        step(*one, number)
        step(*same, number)
        assert all(map(torch.equal, one[0], same[0]))


@pytest.mark.parametrize("delay", [0.0, 2.5])
def test_the_others_have_the_spike_of_adamw_to_the_bit(delay):
    def adamw(parameters, lr, **options):
        return Spike(adam(groups(parameters), AdamWOptions(lr=lr, **options)))

    how = {"weight_decay": 0.1, "betas": (0.8, 0.99)}
    one, other = made(spiked, delay, **how), made(adamw, delay, **how)
    for number in range(10):
        step(*one, number)
        step(*other, number)
        assert all(map(torch.equal, one[0][:2], other[0][:2]))


def test_a_step_that_fails_leaves_the_groups_as_they_are(monkeypatch):
    parameters, optimizer = made(spiked, 2.0)
    groups, ahead = optimizer.param_groups, optimizer.param_groups[0]["ahead"]
    monkeypatch.setattr(type(optimizer.inner), "_step_matrix", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        step(parameters, optimizer, 0)
    assert optimizer.param_groups is groups
    assert groups[0]["ahead"] == ahead

"""Largest stable learning rates: formulas that are known, and descents that are stable below and not above."""

from __future__ import annotations

from math import pi, sin

import numpy as np
import pytest
import torch
from petra_graph_delay.corrected_optimizer import corrected
from petra_graph_delay.declared import DelayOptions
from torch import nn

from tools.studies.stability import FEEDBACK, METHODS, Descent, largest_stable_rate, polynomial

PLAIN, MOMENTUM, NESTEROV = (METHODS[name] for name in ("no momentum", "momentum", "Nesterov"))


@pytest.mark.parametrize(
    ("descent", "delay", "rate"),
    [
        (PLAIN, 0, 2.0),
        (PLAIN, 1, 1.0),
        (PLAIN, 5, 2 * sin(pi / 22)),
        (MOMENTUM, 0, 2 * 1.9),
        (NESTEROV, 0, 2 * 1.9 / 2.8),
        (FEEDBACK, 0, 2 * 1.9),
    ],
)
def test_known_rates(descent, delay, rate):
    assert largest_stable_rate(descent, delay) == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize("delay", [1, 3])
@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"no momentum"}))
def test_the_catalogs_sgd_descends_below_the_rate_and_not_above(name, delay):
    descent = METHODS[name]
    rate = largest_stable_rate(descent, delay)
    assert farthest(descent, delay, 0.94 * rate) < 1e-2
    assert farthest(descent, delay, 1.06 * rate) > 10


@pytest.mark.parametrize("delay", [1, 3, 8])
@pytest.mark.parametrize("nesterov", [False, True])
def test_on_a_quadratic_compensation_and_prediction_are_one(delay, nesterov):
    """Their polynomials are the same, though neither formula was derived from the other."""
    spike, prediction = (
        polynomial(Descent(momentum=0.8, nesterov=nesterov, **how), delay, 0.3)
        for how in ({"spike": True}, {"predict": True})
    )
    np.testing.assert_allclose(spike, prediction, atol=1e-12)


def farthest(descent: Descent, delay: int, rate: float) -> float:
    """Return the largest of the last weights of a descent of w^2 / 2, from 1."""
    parameter = nn.Parameter(torch.ones((), dtype=torch.float64))
    plain = torch.optim.SGD([parameter], lr=rate, momentum=descent.momentum, nesterov=descent.nesterov)
    optimizer = corrected(plain, DelayOptions(correction="spike" if descent.spike else "none", predict=True))
    optimizer.param_groups[0]["staleness"] = float(delay)
    seen, last = [1.0], []
    for number in range(3000):
        parameter.grad = torch.tensor(seen[max(0, len(seen) - 1 - delay)], dtype=torch.float64)
        optimizer.step()
        predicted = optimizer.predicted_weights(delay)[0][1] if descent.predict else parameter.detach()
        seen.append(predicted.item())
        if number >= 2900 or abs(parameter.item()) > 1e6:
            last.append(abs(parameter.item()))
        if last and last[-1] > 1e6:
            break
    return max(last)

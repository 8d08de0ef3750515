"""Predicted weights: where steps without gradients would lead, beside the parameters, which stay as they are."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from stepping import PredictedAdam, PredictedSgd, PredictedSpikeAdam, PredictedSpikeSgd
from torch import nn

ROUNDING = 1e-12
DELAYS = [1, 2, 5]
SGD = [
    {"momentum": 0.9, "nesterov": nesterov, "weight_decay": weight_decay}
    for nesterov in (False, True)
    for weight_decay in (0.0, 0.3)
]
ADAM = [
    {"betas": (0.9, 0.99), "eps": 1e-3, "decoupled_weight_decay": decoupled, "weight_decay": weight_decay}
    for decoupled in (False, True)
    for weight_decay in (0.0, 0.3)
]
ALL = [
    *((build, how) for build in (PredictedSgd, PredictedSpikeSgd) for how in SGD[1::2]),
    *((build, how) for build in (PredictedAdam, PredictedSpikeAdam) for how in ADAM[1::2]),
]


def trained(build, steps=3, lr=0.1, staleness=0.0, dtype=torch.float64, **how):
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in [(3,), (4, 2)]]
    optimizer = build(parameters, lr=lr, **how)
    for group in optimizer.param_groups:
        group["staleness"] = staleness
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=dtype)
        optimizer.step()
    return parameters, optimizer


@pytest.mark.parametrize("how", SGD)
@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize(("build", "staleness"), [(PredictedSgd, 2.0), (PredictedSpikeSgd, 1.5)])
def test_sgd_predicts_where_steps_without_gradients_lead(build, staleness, delay, how):
    parameters, optimizer = trained(build, staleness=staleness, **how)
    predicted = optimizer.predicted_weights(delay)
    for _ in range(delay):
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    assert [id(one) for one, _ in predicted] == [id(one) for one in parameters]
    for parameter, weights in predicted:
        torch.testing.assert_close(weights, parameter.detach(), rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize(("build", "how"), ALL)
def test_a_prediction_changes_nothing_and_shares_no_memory(build, how):
    parameters, optimizer = trained(build, **how)
    values, state = deepcopy([one.detach() for one in parameters]), deepcopy(optimizer.state_dict())
    for _, weights in optimizer.predicted_weights(3):
        weights.zero_()
    assert all(map(torch.equal, parameters, values))
    again = optimizer.state_dict()
    assert again["param_groups"] == state["param_groups"]
    for number, one in again["state"].items():
        assert all(torch.equal(value, state["state"][number][key]) for key, value in one.items())


@pytest.mark.parametrize(("build", "how"), ALL)
def test_nothing_is_predicted_before_the_first_step_and_without_delay(build, how):
    parameters, optimizer = trained(build, steps=0, **how)
    assert optimizer.predicted_weights(3) == []
    assert not optimizer.state
    parameters[1].grad = torch.ones_like(parameters[1])
    optimizer.step()
    assert [id(one) for one, _ in optimizer.predicted_weights(3)] == [id(parameters[1])]
    assert optimizer.predicted_weights(0) == []


@pytest.mark.parametrize(("build", "how"), ALL)
def test_at_once_and_one_by_one_are_the_same(build, how):
    results = []
    for foreach in (True, False):
        _, optimizer = trained(build, staleness=1.0, foreach=foreach, **how)
        results.append([weights for _, weights in optimizer.predicted_weights(2)])
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize(
    ("build", "base", "how"),
    [
        (PredictedSgd, torch.optim.SGD, SGD[3]),
        (PredictedAdam, torch.optim.Adam, ADAM[1]),
        (PredictedAdam, torch.optim.Adam, ADAM[3]),
    ],
)
def test_a_step_is_torchs_to_the_bit(build, base, how):
    mine, theirs = (trained(one, steps=20, staleness=3.0, dtype=torch.float32, **how)[0] for one in (build, base))
    assert all(map(torch.equal, mine, theirs))


@pytest.mark.parametrize(
    ("build", "how"),
    [(PredictedSgd, {"momentum": 0.9}), (PredictedSgd, {"momentum": 0.9, "nesterov": True}), (PredictedAdam, {})],
)
def test_predicted_weights_are_nearer_to_those_of_the_backward(build, how):
    """In a descent of a quadratic by gradients of weights five steps old."""
    delay = 5
    parameter = nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = build([parameter], lr=0.005, **how)
    history, predictions = [parameter.item()], [parameter.item()]
    for u in range(60):
        parameter.grad = torch.tensor([0.7 * history[max(u - delay, 0)]], dtype=torch.float64)
        optimizer.step()
        history.append(parameter.item())
        predictions.append(optimizer.predicted_weights(delay)[0][1].item())
    after = history[delay:]
    stale = sum(abs(a - b) for a, b in zip(history, after, strict=False))
    left = sum(abs(a - b) for a, b in zip(predictions, after, strict=False))
    assert left < 0.7 * stale

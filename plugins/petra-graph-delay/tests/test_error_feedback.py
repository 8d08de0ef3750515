"""Error feedback: the base's own steps without delay, and the formula with it."""

from __future__ import annotations

from types import MappingProxyType

import pytest
import torch
from delayed_quadratic import START, adam_by_hand, delayed, sgd_by_hand
from petra_graph_delay.late_steps import late_steps
from stepping import ADAM, SGD, FeedbackAdam, FeedbackNadam, FeedbackSgd, expect_same, made, set_delay, step
from torch import nn

from tests.support.pairwise import pairs_of

EXACT = 1e-12
"""Of 40 float64 updates."""
NADAM = MappingProxyType({"weight_decay": 0.1, "decoupled_weight_decay": True})
PAIRS = [
    *((torch.optim.SGD, FeedbackSgd, how) for how in SGD),
    *((torch.optim.Adam, FeedbackAdam, how) for how in ADAM),
    (torch.optim.NAdam, FeedbackNadam, NADAM),
]
WITH_DELAY = [FeedbackSgd, FeedbackAdam, FeedbackNadam]


def fed_back(w, delay, steps, base):
    """The weights under p += u_t + D (u_t - u_(t-1)), u_(-1) = u_0, where u_t = base(w, gradient)."""
    history, last = [w], None
    for _ in range(steps):
        u = base(history[-1], delayed(history, delay))
        history.append(history[-1] + u + delay * (u - (u if last is None else last)))
        last = u
    return history


def sgd_base(*, lr, momentum, weight_decay, nesterov):
    held = {"v": 0.0}

    def u(w, g):
        g = g + weight_decay * w
        held["v"] = momentum * held["v"] + g
        return -lr * (g + momentum * held["v"] if nesterov else held["v"])

    return u


def adam_base(*, lr, betas, eps, weight_decay, decoupled_weight_decay):
    (beta1, beta2), held = betas, {"t": 0, "m": 0.0, "s": 0.0}

    def u(w, g):
        g = g if decoupled_weight_decay else g + weight_decay * w
        held["t"] += 1
        held["m"], held["s"] = beta1 * held["m"] + (1 - beta1) * g, beta2 * held["s"] + (1 - beta2) * g * g
        mean, square = held["m"] / (1 - beta1 ** held["t"]), held["s"] / (1 - beta2 ** held["t"])
        return -lr * mean / (square**0.5 + eps) - (lr * weight_decay * w if decoupled_weight_decay else 0.0)

    return u


@pytest.mark.parametrize("delay", [0.5, 1])
@pytest.mark.parametrize(
    ("build", "base", "how"),
    [
        *((FeedbackSgd, sgd_base, how) for how in SGD),
        *((FeedbackAdam, adam_base, {**how, "eps": 1e-3}) for how in ADAM),
    ],
)
def test_old_gradients_are_the_formula(build, base, how, delay):
    expected = [fed_back(start, delay, 40, base(lr=0.05, **how)) for start in START]
    parameter = nn.Parameter(torch.tensor(START, dtype=torch.float64))
    optimizer = build([parameter], lr=0.05, **how)
    set_delay(optimizer, float(delay))
    history = [parameter.detach().clone()]
    for at in range(1, 41):
        parameter.grad = delayed(history, delay).clone()
        optimizer.step()
        history.append(parameter.detach().clone())
        wanted = torch.tensor([one[at] for one in expected], dtype=torch.float64)
        torch.testing.assert_close(history[-1], wanted, rtol=EXACT, atol=EXACT)


def test_the_formula_without_delay_is_that_of_the_base():
    sgd = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}
    assert fed_back(1.0, 0, 40, sgd_base(**sgd)) == pytest.approx(sgd_by_hand(1.0, 0, 40, **sgd), rel=EXACT)
    adam = {"lr": 0.05, "betas": (0.9, 0.999), "eps": 1e-3, "weight_decay": 0.1}
    by_hand = adam_by_hand(1.0, 0, 40, decoupled=True, **adam)
    assert fed_back(1.0, 0, 40, adam_base(decoupled_weight_decay=True, **adam)) == pytest.approx(by_hand, rel=EXACT)


@pytest.mark.parametrize(("pair", "foreach", "delay"), pairs_of(range(len(PAIRS)), [None, True, False], [None, 0.0]))
def test_without_delay_the_bits_are_those_of_the_base(pair, foreach, delay):
    base, fed, how = PAIRS[pair]
    plain, same = made(base, foreach=foreach, **how), made(fed, delay, foreach=foreach, **how)
    for number in range(20):
        without = (1, 3) if number % 3 == 1 else ()
        step(*plain, number, without)
        step(*same, number, without)
        for own, other in zip(plain[0], same[0], strict=True):
            assert torch.equal(own, other)
    for own, other in zip(plain[0], same[0], strict=True):
        kept = same[1].state[other]
        assert kept.keys() - plain[1].state[own].keys() == {"last_step", "last_step_scale"}
        assert all(torch.equal(kept[key], value) for key, value in plain[1].state[own].items())


@pytest.mark.parametrize("build", WITH_DELAY)
def test_a_first_step_has_no_step_before_it_to_differ_from(build):
    """Neither has a parameter's own first one, where others have taken some."""
    plain, fed = made(build, 0.0), made(build, 1.0)
    for run in (plain, fed):
        step(*run, 0, without=(0, 2))
        step(*run, 1)
    same = [torch.equal(one, other) for one, other in zip(plain[0], fed[0], strict=True)]
    assert same == [True, False, True, False, False]


@pytest.mark.parametrize("build", [FeedbackSgd, FeedbackAdam])  # torch's NAdam itself rounds otherwise
def test_parameters_at_once_and_one_by_one_are_the_same(build):
    at_once, single = (made(build, 1.0, foreach=foreach) for foreach in (True, False))
    for number in range(5):
        without = (1, 3) if number % 2 else ()
        step(*at_once, number, without)
        step(*single, number, without)
        expect_same(at_once, single)


@pytest.mark.parametrize("build", WITH_DELAY)
def test_it_keeps_one_copy(build):
    parameters, optimizer = made(build, 0.5)
    step(parameters, optimizer, 0)
    assert all(optimizer.state[one]["last_step"].shape == one.shape for one in parameters)


def test_a_step_that_fails_leaves_the_groups_as_they_are():
    class Fails(torch.optim.NAdam):
        def step(self):
            return 1 / 0

    Fails.__module__ = torch.optim.NAdam.__module__
    parameters, optimizer = made(Fails, foreach=False)
    groups = optimizer.param_groups
    parameters[0].grad = torch.ones(())
    with pytest.raises(ZeroDivisionError):
        list(late_steps(optimizer))
    assert optimizer.param_groups is groups

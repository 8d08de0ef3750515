"""Earlier weights: which parameters have them, and steps that are those of the optimizer without; their formula is in `test_formulas_of_corrections.py`."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from stepping import (
    ADAM,
    SGD,
    EarlierAdam,
    EarlierFeedbackAdam,
    EarlierFeedbackSgd,
    EarlierSgd,
    EarlierSpikeAdam,
    EarlierSpikeSgd,
    FeedbackAdam,
    FeedbackSgd,
    SpikeAdam,
    SpikeSgd,
    made,
    set_delay,
    step,
)
from torch import nn

from tests.support.pairwise import pairs_of

EXACT = 1e-12
PAIRS = [
    *((base, build, SGD[1]) for base, build in [(torch.optim.SGD, EarlierSgd), (SpikeSgd, EarlierSpikeSgd)]),
    (FeedbackSgd, EarlierFeedbackSgd, SGD[3]),
    *((base, build, ADAM[6]) for base, build in [(torch.optim.Adam, EarlierAdam), (FeedbackAdam, EarlierFeedbackAdam)]),
    (SpikeAdam, EarlierSpikeAdam, ADAM[2]),
]


@pytest.mark.parametrize(
    ("pair", "foreach", "delay"), pairs_of(range(len(PAIRS)), [None, True, False], [None, 0.0, 1.0, 2.5])
)
def test_its_steps_are_those_of_the_optimizer_without_it(pair, foreach, delay):
    base, build, how = PAIRS[pair]
    """To the bit without delay, and to rounding with it."""
    same = partial(torch.allclose, rtol=1e-5, atol=1e-6) if delay else torch.equal
    plain, other = (made(one, delay, foreach=foreach, **how) for one in (base, build))
    for number in range(12):
        without = (1, 3) if number % 3 == 1 else ()
        step(*plain, number, without)
        step(*other, number, without)
        other[1].earlier_weights(2)
    for own, corrected in zip(plain[0], other[0], strict=True):
        assert same(own, corrected)
        kept = other[1].state[corrected]
        assert kept.keys() - plain[1].state[own].keys() == {"mean_step", "mean_step_scale"}
        assert all(same(*map(torch.as_tensor, (kept[key], value))) for key, value in plain[1].state[own].items())


@pytest.mark.parametrize(("_base", "build", "how"), PAIRS)
def test_without_delay_the_mean_is_the_last_step(build, _base, how):
    parameters, optimizer = made(build, dtype=torch.float64, **how)
    for number, delay in enumerate((0.0, 3.0, 2.0, 0.0)):
        before = [one.detach().clone() for one in parameters]
        set_delay(optimizer, delay)
        step(parameters, optimizer, number)
    for (own, earlier), value in zip(optimizer.earlier_weights(1), before, strict=True):
        torch.testing.assert_close(earlier, value, rtol=EXACT, atol=EXACT)
        assert own.stride() == earlier.stride()


def test_parameters_without_a_step_are_left_out_and_at_no_delay_all():
    parameters, optimizer = made(EarlierSgd, 2.0, momentum=0.9)
    assert optimizer.earlier_weights(3) == []
    step(parameters, optimizer, 0, without=(0, 2, 3, 4))
    assert [id(one) for one, _ in optimizer.earlier_weights(3)] == [id(parameters[1])]
    assert optimizer.earlier_weights(0) == []


@pytest.mark.parametrize("build", [EarlierSgd, EarlierAdam])
def test_it_is_nearer_to_the_weights_of_the_forward(build):
    """In a descent with old gradients, after its first steps."""
    w, delay = nn.Parameter(torch.tensor(1.0, dtype=torch.float64)), 3
    optimizer = build([w], lr=0.01)
    history, estimates = [1.0], [1.0]
    for u in range(60):
        set_delay(optimizer, float(min(u, delay)))
        w.grad = torch.tensor(0.7 * history[max(u - delay, 0)], dtype=torch.float64)
        optimizer.step()
        history.append(w.item())
        estimates.append(optimizer.earlier_weights(delay)[0][1].item())
    late = range(20, 61)
    missed = sum(abs(estimates[at] - history[at - delay]) for at in late)
    assert missed < 0.2 * sum(abs(history[at] - history[at - delay]) for at in late)

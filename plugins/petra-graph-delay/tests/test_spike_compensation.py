"""Spike compensation: torch's own steps without delay, and its definition; the formula is in `test_formulas_of_corrections.py`."""

from __future__ import annotations

import pytest
import torch
from petra_graph_delay.known_optimizers import _CACHED, chunked
from stepping import ADAM, SGD, SpikeAdam, SpikeSgd, expect_same, made, set_delay, step
from torch import nn

from tests.support.pairwise import pairs_of

ROUNDING = 1e-12
"""Of 40 float64 updates."""
PAIRS = [(torch.optim.SGD, SpikeSgd, how) for how in SGD[:4]] + [(torch.optim.Adam, SpikeAdam, how) for how in ADAM]


@pytest.mark.parametrize(("pair", "foreach", "delay"), pairs_of(range(len(PAIRS)), [None, True, False], [None, 0.0]))
def test_without_delay_it_is_torchs_to_the_bit(pair, foreach, delay):
    base, compensated, how = PAIRS[pair]
    plain, same = made(base, foreach=foreach, **how), made(compensated, delay, foreach=foreach, **how)
    for number in range(20):
        step(*plain, number)
        step(*same, number)
        expect_same(plain, same)


@pytest.mark.parametrize("how", [SGD[2], SGD[3]])
def test_at_a_delay_of_one_momentum_is_torchs_nesterov(how):
    nesterov = made(torch.optim.SGD, dtype=torch.float64, **how | {"nesterov": True})
    compensated = made(SpikeSgd, 1.0, dtype=torch.float64, **how)
    for number in range(20):
        step(*nesterov, number)
        step(*compensated, number)
        for a, b in zip(nesterov[0], compensated[0], strict=True):
            torch.testing.assert_close(b, a, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("delay", [1, 2, 5])
def test_a_late_gradient_has_moved_the_weights_as_far_as_one_in_time(delay, nesterov):
    """The definition of the correction, and the check of its coefficients: one gradient of 1, then none."""

    def course(build, steps):
        parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = build([parameter], lr=1.0, momentum=0.9, nesterov=nesterov)
        set_delay(optimizer, float(delay))
        course = []
        for number in range(steps):
            parameter.grad = torch.full((1,), 1.0 if number == 0 else 0.0, dtype=torch.float64)
            optimizer.step()
            course.append(parameter.item())
        return course

    late, in_time = course(SpikeSgd, 10), course(torch.optim.SGD, 10 + delay)
    assert late == pytest.approx(in_time[delay:], rel=ROUNDING)


@pytest.mark.parametrize(("build", "how"), [(SpikeSgd, SGD[1]), (SpikeAdam, ADAM[0])])
def test_parameters_at_once_and_one_by_one_are_the_same(build, how):
    at_once, single = (made(build, 2.5, foreach=foreach, **how) for foreach in (True, False))
    for number in range(5):
        without = (1, 3) if number % 2 else ()  # so the parameters have taken different numbers of steps
        step(*at_once, number, without)
        step(*single, number, without)
        expect_same(at_once, single)


def test_parts_that_stay_in_a_cache_are_all_parameters_in_order():
    sizes = [0, 3, _CACHED - 3, 5, 5, 2 * _CACHED, 1, 0]
    parameters = [torch.zeros(size) for size in sizes]
    parts = [sizes[part] for part in chunked({"foreach": None}, parameters)]
    assert parts == [[0, 3, _CACHED - 3], [5, 5], [2 * _CACHED], [1, 0]]
    assert [sizes[part] for part in chunked({"foreach": True}, parameters)] == [sizes]
    assert list(chunked({"foreach": None}, [])) == []


@pytest.mark.parametrize(("base", "compensated", "how"), PAIRS)
def test_it_keeps_what_torchs_optimizer_keeps_and_no_more(base, compensated, how):
    plain, corrected = made(base, **how), made(compensated, 3.0, **how)
    step(*plain, 0)
    step(*corrected, 0)
    for a, b in zip(plain[0], corrected[0], strict=True):
        mine, theirs = corrected[1].state[b], plain[1].state[a]
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)

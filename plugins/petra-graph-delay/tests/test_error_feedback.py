"""Error feedback: the base's own steps without delay, and a first step; the formula is in `test_formulas_of_corrections.py`."""

from __future__ import annotations

from types import MappingProxyType

import pytest
import torch
from petra_graph_delay.late_steps import late_steps
from stepping import ADAM, SGD, FeedbackAdam, FeedbackNadam, FeedbackSgd, expect_same, made, step

from tests.support.pairwise import pairs_of

NADAM = MappingProxyType({"weight_decay": 0.1, "decoupled_weight_decay": True})
PAIRS = [
    *((torch.optim.SGD, FeedbackSgd, how) for how in SGD),
    *((torch.optim.Adam, FeedbackAdam, how) for how in ADAM),
    (torch.optim.NAdam, FeedbackNadam, NADAM),
]
WITH_DELAY = [FeedbackSgd, FeedbackAdam, FeedbackNadam]


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

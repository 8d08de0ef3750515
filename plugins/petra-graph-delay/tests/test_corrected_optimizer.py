"""Corrections around any optimizer: which there are for it, what they leave as it is, and what is refused."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from petra_graph_delay.corrected_optimizer import corrected
from petra_graph_delay.declared import DelayOptions
from petra_graph_delay.spike_compensation import Spike
from stepping import expect_same, made, set_delay, step

from petra_graph.catalog.optimizers.declared_optimizers import MuonOptions
from petra_graph.catalog.optimizers.muon import muon
from petra_graph.errors import SpecError
from petra_graph.kinds.optimizer import ParameterGroups, rate_ratios


class Counts(torch.optim.Optimizer):
    """An optimizer of another package: its rate falls with the number of its steps, which it counts in its groups."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr, "steps": 0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["steps"] += 1
            for one in group["params"]:
                if one.grad is not None:
                    one.sub_(one.grad, alpha=group["lr"] / group["steps"])

    def evaluated_weights(self, parameter):
        return parameter.detach() / 2


def of_muon(parameters, lr):
    return muon(ParameterGroups(decayed=parameters[2:], undecayed=parameters[:2]), MuonOptions(lr=lr))


MOMENTA = {
    "sgd": lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
OTHERS = {
    "no momentum": torch.optim.SGD,
    "nadam": torch.optim.NAdam,
    "rmsprop": torch.optim.RMSprop,
    "amsgrad": lambda parameters, lr: torch.optim.Adam(parameters, lr, amsgrad=True),
    "counting": Counts,
}
EVERY = MOMENTA | OTHERS | {"muon": of_muon}
FEEDBACK, DISCREPANCY = {"correction": "error-feedback"}, {"correct_discrepancy": True}
FOR_ALL = [FEEDBACK, DISCREPANCY, FEEDBACK | DISCREPANCY]
SPIKE, PREDICT = {"correction": "spike"}, {"predict": True}
FOR_MOMENTA = [SPIKE, PREDICT, SPIKE | PREDICT, SPIKE | DISCREPANCY]
OF_OTHERS = [(name, how) for name in OTHERS for how in FOR_ALL]
CASES = [("muon", SPIKE)] + OF_OTHERS + [(name, how) for name in MOMENTA for how in FOR_ALL + FOR_MOMENTA]


def around(name, how):
    return lambda parameters, lr: corrected(EVERY[name](parameters, lr=lr), DelayOptions(**how))


@pytest.mark.parametrize(("name", "how"), OF_OTHERS, ids=str)
def test_without_delay_the_steps_are_those_of_the_optimizer_to_the_bit(name, how):
    plain, same = made(EVERY[name]), made(around(name, how))
    for number in range(6):
        without = (1, 3) if number == 2 else ()
        step(*plain, number, without)
        step(*same, number, without)
        assert all(map(torch.equal, plain[0], same[0]))


@pytest.mark.parametrize(("name", "how"), CASES, ids=str)
def test_with_a_delay_they_are_others_unless_the_estimate_alone_is_asked(name, how):
    plain, late = made(EVERY[name]), made(around(name, how), 1.0)
    for number in range(4):
        step(*plain, number)
        step(*late, number)
    near = all(torch.allclose(one, other, rtol=1e-5, atol=1e-6) for one, other in zip(plain[0], late[0], strict=True))
    assert near == (how in (DISCREPANCY, PREDICT))


@pytest.mark.parametrize("name", OTHERS)
def test_error_feedback_is_the_formula_for_any_optimizer(name):
    """p + u + D (u - the step before), with the steps u of an optimizer that is put where the corrected one is."""
    (parameters, optimizer), (others, plain) = (
        made(around(name, FEEDBACK), 0.5, torch.float64),
        made(EVERY[name], dtype=torch.float64),
    )
    last = None
    for number in range(6):
        before = [one.detach().clone() for one in parameters]
        for own, other in zip(parameters, others, strict=True):
            other.data.copy_(own)
        step(parameters, optimizer, number)
        step(others, plain, number)
        u = [other.detach() - one for other, one in zip(others, before, strict=True)]
        for own, one, now, then in zip(parameters, before, u, last or u, strict=True):
            torch.testing.assert_close(own.detach(), one + now + 0.5 * (now - then), rtol=1e-12, atol=1e-12)
        last = u


@pytest.mark.parametrize(("name", "how"), CASES, ids=str)
def test_saved_and_restored_it_continues_to_the_bit(name, how):
    def course(run, numbers):
        for number in numbers:
            set_delay(run[1], (0.0, 0.5, 1.0, 3.0)[number % 4])
            step(*run, number, without=(1, 4) if number == 2 else ())

    straight, resumed = made(around(name, how)), made(around(name, how))
    course(straight, range(6))
    for own, value in zip(resumed[0], straight[0], strict=True):
        own.data = value.detach().clone()
    resumed[1].load_state_dict(deepcopy(straight[1].state_dict()))
    course(straight, range(6, 12))
    course(resumed, range(6, 12))
    expect_same(straight, resumed)


@pytest.mark.parametrize(
    ("how", "has"),
    [
        ({}, ()),
        (SPIKE, ()),
        (PREDICT, ("predicted_weights",)),
        (DISCREPANCY, ("earlier_weights",)),
        (FEEDBACK, ("largest_staleness",)),
        (FEEDBACK | DISCREPANCY, ("earlier_weights", "largest_staleness")),
        (SPIKE | PREDICT, ("predicted_weights",)),
    ],
    ids=str,
)
def test_it_has_what_the_executor_asks_for(how, has):
    asked = ("predicted_weights", "earlier_weights", "largest_staleness")
    optimizer = made(around("adam", how))[1]
    assert tuple(name for name in asked if hasattr(optimizer, name)) == has
    assert all(("staleness" in group) == bool(how) for group in optimizer.param_groups)


def test_without_corrections_it_is_the_optimizer_itself():
    plain = made(torch.optim.SGD)[1]
    assert corrected(plain, DelayOptions()) is plain


def test_groups_and_state_are_one_with_those_of_the_optimizer():
    parameters, optimizer = made(around("sgd", SPIKE | DISCREPANCY))
    step(parameters, optimizer, 0)
    assert optimizer.param_groups is optimizer.wrapped.param_groups
    assert optimizer.state is optimizer.wrapped.state
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "staleness": 0.0})
    assert len(optimizer.wrapped.param_groups) == 2


def test_what_the_optimizer_has_besides_is_still_there():
    parameters, optimizer = made(around("counting", FEEDBACK))
    assert torch.equal(optimizer.evaluated_weights(parameters[2]), parameters[2].detach() / 2)
    with pytest.raises(AttributeError):
        optimizer.predicted_weights(1)


def test_an_optimizer_that_was_given_no_rate_has_the_whole_rate():
    plain = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    assert rate_ratios(corrected(plain, DelayOptions(**SPIKE)), 0.5) == rate_ratios(plain, 0.5) == (1.0,)


def test_steps_are_not_fused():
    """Fused ones have their state on the GPU, which late steps would wait for."""
    plain = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    plain.param_groups[0]["fused"] = True
    assert Spike(plain).param_groups[0]["fused"] is None


@pytest.mark.parametrize("key", ["correction", "predict"])
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (torch.optim.NAdam, r"needs an optimizer whose momentum it knows: torch's SGD, .* \(got NAdam\)"),
        (OTHERS["amsgrad"], r"\(got Adam\)"),
        (Counts, r"\(got Counts\)"),
        (torch.optim.SGD, r"needs a momentum above 0 \(got 0\), whose steps to come it counts on"),
        (lambda parameters, lr: torch.optim.Adam(parameters, lr, (0.0, 0.9)), "needs a first beta above 0"),
    ],
)
def test_what_counts_on_a_momentum_refuses_others(key, build, message):
    options = DelayOptions(**(PREDICT if key == "predict" else SPIKE))
    with pytest.raises(SpecError, match=message) as caught:
        corrected(made(build)[1], options)
    assert [problem.path for problem in caught.value.problems] == [(key,)]

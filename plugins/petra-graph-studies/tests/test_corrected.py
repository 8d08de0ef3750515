"""Corrections around sgd, adam, adamw and muon: the optimizer's own bits without delay, and runs that are interrupted or shared.

The formulas are in `test_formulas_of_corrections.py`.
"""

import json
import re

import pytest
import torch
from petra_graph_studies.corrected import Spike, corrected
from torch import nn

from petra_graph.cli.main import main
from petra_graph.errors import SpecError
from petra_graph.plugins import ParameterGroups
from petra_graph.plugins.contract import OPTIMIZER
from petra_graph.plugins.registry import discover
from petra_graph.testing import OptimizerTrial
from petra_graph.training.prepare import prepare
from petra_graph.training.run import run
from tests.support.kit import kept
from tests.support.runs import SPEC, StopAt, only_run, result_of

SHAPES = [(), (5,), (4, 3), (2, 3, 3, 3), (40, 50)]
SPIKE, FEEDBACK = {"correction": "spike"}, {"correction": "error-feedback"}
PREDICT, DISCREPANCY = {"predict": True}, {"correct_discrepancy": True}
CASES = [
    ("sgd", SPIKE),
    ("sgd", PREDICT),
    ("sgd", FEEDBACK | DISCREPANCY),
    ("adam", FEEDBACK),
    ("adam", SPIKE | PREDICT),
    ("adamw", DISCREPANCY),
    ("adamw", SPIKE),
    ("muon", SPIKE | DISCREPANCY),
    ("muon", FEEDBACK),
]


def groups():
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    return parameters, ParameterGroups(decayed=parameters[2:], undecayed=parameters[:2])


def made(name, how, delay=0.0, **options):
    parameters, grouped = groups()
    optimizer = corrected(grouped, optimizer=name, lr=0.01, weight_decay=0.1, **how, **options)
    set_delay(optimizer, delay)
    return parameters, optimizer


def plain(name, **options):
    parameters, grouped = groups()
    plugin, _ = discover().resolve(OPTIMIZER, name).read({"lr": 0.01, "weight_decay": 0.1, **options})
    return parameters, plugin.build(grouped)


def set_delay(optimizer, delay):
    for group in optimizer.param_groups:
        group["staleness"] = delay


def step(run, number, without=()):
    parameters, optimizer = run
    generator = torch.Generator().manual_seed(1 + number)
    for index, parameter in enumerate(parameters):
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.grad = None if index in without else drawn
    optimizer.step()


@pytest.mark.parametrize(("name", "how"), CASES, ids=str)
def test_without_delay_steps_and_state_are_the_optimizers_to_the_bit(name, how):
    one, same = plain(name), made(name, how)
    for number in range(6):
        without = (1, 3) if number == 2 else ()
        step(one, number, without)
        step(same, number, without)
        assert all(map(torch.equal, one[0], same[0]))
    for own, other in zip(one[0], same[0], strict=True):
        kept = same[1].state[other]
        assert all(torch.equal(*map(torch.as_tensor, (kept[key], value))) for key, value in one[1].state[own].items())


@pytest.mark.parametrize(("name", "how"), CASES, ids=str)
def test_a_checkpoint_continues_it_to_the_bit(name, how):
    kept(OptimizerTrial.of(corrected, {"optimizer": name, "lr": 0.01, "weight_decay": 0.1, **how}))


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("delay", [1, 2, 5])
def test_a_late_gradient_has_moved_the_weights_as_far_as_one_in_time(delay, nesterov):
    """The definition of the spike: one gradient of 1, then none."""

    def course(build, steps):
        parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = build(torch.optim.SGD([parameter], lr=1.0, momentum=0.9, nesterov=nesterov))
        set_delay(optimizer, float(delay))
        course = []
        for number in range(steps):
            parameter.grad = torch.full((1,), 1.0 if number == 0 else 0.0, dtype=torch.float64)
            optimizer.step()
            course.append(parameter.item())
        return course

    late, in_time = course(Spike, 10), course(lambda optimizer: optimizer, 10 + delay)
    assert late == pytest.approx(in_time[delay:], rel=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (PREDICT | FEEDBACK, 'predict = true expects steps without correction = "error-feedback"'),
        (PREDICT | {"optimizer": "muon"}, "predict = true is for sgd, adam and adamw"),
        (SPIKE | {"momentum": 0.0, "nesterov": False}, "need a momentum, or a first beta, above 0"),
        ({"optimizer": "adam", "momentum": 0.9}, "adam has no option 'momentum'; it has lr, betas, eps, weight_decay"),
    ],
    ids=str,
)
def test_options_that_do_not_go_together(spec, options, message):
    with pytest.raises(SpecError, match=re.escape(message)):
        prepare(spec, of("sgd", options))


def of(name, how, *settings):
    lr = {"sgd": 0.05, "muon": 0.01}.get(name, 0.002)
    options = {"optimizer": name, "lr": lr, **how}
    text = ", ".join(f"{key} = {json.dumps(value)}" for key, value in options.items())
    return ["optimizer.name=corrected", f"optimizer.options={{{text}}}", *settings]


LOCKSTEP = ("method.schedule=lockstep", "method.accumulation=1")
RUNS = {
    "prediction with the spike, adam, lockstep": of("adam", PREDICT | SPIKE, *LOCKSTEP),
    "discrepancy with the spike, muon, lockstep": of("muon", DISCREPANCY | SPIKE, *LOCKSTEP),
}


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


@pytest.mark.parametrize(("how", "call"), list(zip(RUNS, ("trained 2/6", "evaluating 1"), strict=True)))
def test_interrupted_and_resumed_is_uninterrupted(spec, whole_run, how, call):
    run(spec, RUNS[how], StopAt(call))
    assert main(["run", "--resume", "latest"]) == 0
    assert result_of(only_run()) == result_of(whole_run(SPEC, *RUNS[how]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            of("sgd", PREDICT, "method.name=pipedream"),
            'optimizer "corrected" computes for other parameters than a stage\'s own, and under method "pipedream"',
        ),
        (
            of("sgd", FEEDBACK, "method.accumulation=1"),
            'optimizer "corrected" is for delays of at most 1 update, and stage 1 has one of 3 updates',
        ),
    ],
)
def test_delays_and_methods_that_do_not_suit_a_correction_are_refused(spec, settings, message):
    with pytest.raises(SpecError, match=message):
        prepare(spec, settings)

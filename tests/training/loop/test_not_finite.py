"""Where a loss that is not finite came from."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from petra_graph.errors import RunFailed
from petra_graph.training.loop.not_finite import NotFinite
from tests.support.pipelines import CHAIN, batches, pipeline

NAN, INF = float("nan"), float("inf")


def told(built, data) -> str:
    """Train until the loss is not finite, and say what is said then."""

    return problem_of(built, data).message


def problem_of(built, data):
    def observe(result):
        if not torch.isfinite(result.loss):
            raise NotFinite(built.executors, result, epoch=2)

    with pytest.raises(RunFailed) as caught:
        built.runtime.train(data, range(len(data)), observe)
    (problem,) = caught.value.problems
    return problem


@pytest.fixture
def built():
    return pipeline(CHAIN, (8,), schedule="1f1b")


@pytest.fixture
def data():
    return batches((8,), 8)


def break_one(built, stage: int) -> str:
    (module,) = built.executors[stage - 1].modules.values()
    key, parameter = next(iter(module.named_parameters()))
    with torch.no_grad():
        parameter.flatten()[0] = NAN
    return key


def test_a_parameter_is_named_with_the_stage_whose_output_it_broke(built, data):
    key = break_one(built, 3)
    assert told(built, data) == (
        "the loss is nan at micro-batch 0 (epoch 2); it began in the output of stage 3 (rev1), "
        f'where {key} of node "rev1" in stage 3 is not finite after 0 updates'
    )


def test_of_several_broken_stages_the_first_that_the_micro_batch_met(built, data):
    for stage in (2, 4):
        break_one(built, stage)
    assert "began in the output of stage 2 (rev0)" in told(built, data)


def test_an_output_overflows_though_parameters_are_finite(built, data):
    with torch.no_grad():
        for parameter in built.executors[1].updater.parameters:
            parameter.fill_(1e308)
    assert told(built, data).endswith("it began in the output of stage 2 (rev0)")


def test_what_the_micro_batch_saw_counts_not_what_parameters_are_now(built, data):
    """One micro-batch is broken when it comes in; all parameters are finite, then and now."""
    samples, target = data[3]
    data[3] = (samples.clone().fill_(NAN), target)
    assert told(built, data) == "the loss is nan at micro-batch 3 (epoch 2); it began in the output of stage 1 (stem)"


@pytest.mark.parametrize("name", ["channel_dtype", "buffer_dtype"])
def test_where_float16_may_have_overflowed_that_is_said(name):
    """The stem's output is finite, and more than float16 holds; the buffer's infinity shows one update later."""
    built = pipeline(CHAIN, (8,), schedule="sequential", compute="float32", precision={name: "float16"})
    data = [(x.float() * 1e6, target) for x, target in batches((8,), 8)]
    problem = problem_of(built, data)
    assert "it began in the output of stage 1 (stem)" in problem.message
    assert problem.hint.startswith(f'{name} = "float16" ends at 65504: try "bfloat16"; or lower the learning rate')


def test_the_loss_itself(built, data):
    with torch.no_grad():
        built.executors[-1].modules["head"].linear.bias[0] = INF
    said = told(built, data)
    assert "it began in the loss of stage 5 (head), where linear.bias" in said


class OfAnyTargets:
    """Torch's mean, which is nan over targets that are all passed over."""

    def __call__(self, output, target):
        return functional.cross_entropy(output, target)

    def metrics(self, output, target):
        return {}


def test_a_loss_that_is_not_finite_though_the_output_is(built, data):
    """It was told to lower the learning rate, and nothing else."""
    built.executors[-1].runners[-1][1].loss = OfAnyTargets()
    samples, targets = data[2]
    data[2] = samples, torch.full_like(targets, -100)
    problem = problem_of(built, data)
    assert "at micro-batch 2 (epoch 2); it began in the loss of stage 5 (head)" in problem.message
    assert problem.hint.startswith("the head's output is finite, so the loss makes it nan: where it passes over")


def test_a_network_that_blew_up(built, data):
    """The targets were blamed: a rate of 1e200 makes outputs that are not finite before the parameters are."""
    with torch.no_grad():
        built.executors[-1].modules["head"].linear.weight.fill_(1e308)
    problem = problem_of(built, data)
    assert "it began in the loss of stage 5 (head)" in problem.message
    assert problem.hint.startswith("lower the learning rate")


def test_an_evaluation_names_a_broken_parameter(built):
    key = break_one(built, 4)
    (problem,) = NotFinite(built.executors, NAN, 3).problems
    assert problem.message == (
        f'the evaluation loss is nan after epoch 3: {key} of node "rev2" in stage 4 is not finite after 0 updates'
    )


def test_an_evaluation_whose_parameters_are_finite(built):
    (problem,) = NotFinite(built.executors, INF, 3).problems
    assert problem.message == "the evaluation loss is inf after epoch 3, though all parameters are finite"
    assert problem.hint.startswith("running statistics")

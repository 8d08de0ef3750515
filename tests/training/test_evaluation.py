"""Means over samples do not depend on how the samples were batched; and what is said of a loss that is not finite."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.errors import RunFailed
from petra_graph.executor.head import HeadResult
from petra_graph.plugins.callback import Listener
from petra_graph.training.evaluation import Meters, NotFinite
from petra_graph.training.run import run
from tests.support.pipelines import CHAIN, batches, pipeline
from tests.support.runs import SPEC


def result(losses: list[float], right: int) -> HeadResult:
    return HeadResult(
        micro_batch=0,
        samples=len(losses),
        weight=len(losses),
        counted=len(losses),
        loss=torch.tensor(sum(losses) / len(losses), dtype=torch.float64),
        metrics={"top1": torch.tensor(right)},
    )


@given(st.lists(st.lists(st.floats(0, 10), min_size=1, max_size=6), min_size=1, max_size=6))
def test_the_mean_is_the_samples_own(parts):
    totals = Meters()
    for losses in parts:
        totals.add(result(losses, len(losses)))
    every = [loss for losses in parts for loss in losses]
    assert totals.means() == pytest.approx({"loss": sum(every) / len(every), "top1": 1.0})


def test_a_loss_is_divided_by_its_weight_and_a_metric_by_what_it_counts():
    totals, whole = Meters(), Meters()
    totals.add(result([4.0, 4.0], 2)._replace(weight=0.5))
    totals.add(result([1.0], 1)._replace(weight=1.0))
    for half in (totals.sums(), {**Meters().sums(), "sums": {}}):
        whole.merge(json.loads(json.dumps(half)))
    assert whole.means() == totals.means() == {"loss": 2.0, "top1": 1.0}


NAN, INF = float("nan"), float("inf")


def problem_of(built, data):
    """Train until the loss is not finite."""

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


def test_the_first_stage_with_a_parameter_that_is_not_finite_is_named(built, data):
    key = break_one(built, 3)
    break_one(built, 4)
    assert problem_of(built, data).message == (
        f'the loss is nan at micro-batch 0 (epoch 2): {key} of node "rev1" in stage 3 is not finite after 0 updates'
    )


def test_activations_that_overflow_though_parameters_are_finite(built, data):
    with torch.no_grad():
        for parameter in built.executors[1].updater.parameters:
            parameter.fill_(1e308)
    problem = problem_of(built, data)
    assert (
        problem.message
        == "the loss is nan at micro-batch 0 (epoch 2), though all parameters of stages 1 to 5 are finite"
    )
    assert problem.hint.startswith("lower the learning rate")


def test_of_an_evaluation(built):
    (problem,) = NotFinite(built.executors, INF, 3).problems
    assert (
        problem.message == "the evaluation loss is inf after epoch 3, though all parameters of stages 1 to 5 are finite"
    )
    key = break_one(built, 4)
    (problem,) = NotFinite(built.executors, NAN, 3).problems
    assert problem.message == (
        f'the evaluation loss is nan after epoch 3: {key} of node "rev2" in stage 4 is not finite after 0 updates'
    )


def test_a_loss_that_is_a_million_times_the_first_one(write):
    with pytest.raises(
        RunFailed, match=r"the loss is \d.* at micro-batch \d+ \(epoch 1\), and that of the first one was 2\."
    ):
        run(write("small.toml", SPEC), ["optimizer.options.lr=1e6"], Listener())

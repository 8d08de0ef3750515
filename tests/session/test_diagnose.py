"""Where a loss that is not finite came from."""

from __future__ import annotations

import pytest
import torch

from petra_graph.executor.cells import HeadResult
from petra_graph.session.diagnose import not_finite
from tests.pipelines import CHAIN, batches, pipeline

NAN, INF = float("nan"), float("inf")


def told(built, batch, loss=NAN) -> str:
    result = HeadResult(micro_batch=17, samples=4, loss=torch.tensor(loss), metrics={})
    return not_finite(built.runtime, result, batch, epoch=2).message


@pytest.fixture
def built():
    return pipeline(CHAIN, (8,), schedule="1f1b")


@pytest.fixture
def batch():
    return batches((8,), 1)[0]


def break_one(built, stage: int) -> str:
    (module,) = built.executors[stage - 1].modules.values()
    key, parameter = next(iter(module.named_parameters()))
    with torch.no_grad():
        parameter.flatten()[0] = NAN
    built.executors[stage - 1].updater.updates = 5
    return key


def test_a_parameter_is_named(built, batch):
    key = break_one(built, 3)
    assert told(built, batch) == (
        f'the loss is nan at micro-batch 17 (epoch 2); stage 3, node "rev1": {key} is not finite after update 5'
    )


def test_of_several_the_one_nearest_to_the_head_was_first(built, batch):
    for stage in (1, 2, 4):
        break_one(built, stage)
    assert 'stage 4, node "rev2"' in told(built, batch)


def test_an_output_is_named(built, batch):
    """All parameters are finite, and so large that an output is not."""
    with torch.no_grad():
        for parameter in built.executors[1].updater.parameters:
            parameter.fill_(1e308)
    assert told(built, batch, INF) == (
        'the loss is inf at micro-batch 17 (epoch 2); it appeared in the output of stage 2, node "rev0"'
    )


def test_a_sample_that_is_not_finite_appears_in_the_first_stage(built, batch):
    samples, target = batch
    assert told(built, (samples.clone().fill_(NAN), target)).endswith('in the output of stage 1, node "stem"')


def test_the_loss_itself(built, batch):
    assert told(built, batch).endswith("(epoch 2); it appeared in the loss itself, in stage 5")


def test_looking_changes_nothing(built, batch):
    before = built.parameters()
    told(built, batch)
    after = built.parameters()
    assert all(torch.equal(before[key], after[key]) for key in before)

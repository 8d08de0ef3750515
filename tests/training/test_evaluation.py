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
from petra_graph.training.evaluation import Meters
from petra_graph.training.run import run
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


def test_a_loss_that_is_a_million_times_the_first_one(write):
    with pytest.raises(
        RunFailed, match=r"the loss at micro-batch \d+ \(epoch 1\) is \d.*, and that of the first one was 2\."
    ):
        run(write("small.toml", SPEC), ["optimizer.options.lr=1e6"], Listener())

"""Means over samples do not depend on how the samples were batched."""

from __future__ import annotations

import json

import pytest
import torch
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.executor.head import HeadResult
from petra_graph.training.evaluation import Meters
from petra_graph.training.trainer import TrainingPosition


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
    totals.add(evolve(result([4.0, 4.0], 2), weight=0.5))
    totals.add(evolve(result([1.0], 1), weight=1.0))
    for half in (totals.sums(), {**Meters().sums(), "sums": {}}):
        whole.merge(json.loads(json.dumps(half)))
    assert whole.means() == totals.means() == {"loss": 2.0, "top1": 1.0}


@pytest.mark.parametrize(
    ("first", "rate"),
    [((0, 0.0), 10.0), ((20, 4.0), 80 / 6.0), ((51, 9.0), 10.0)],
    ids=["not noted", "behind the first", "most are first"],
)
def test_a_rate_leaves_out_the_start_of_libraries(first, rate):
    """A GPU's libraries took a second to start, of the two that 60 micro-batches took, and so a true plan seemed 1.4 times too fast."""
    position = TrainingPosition(micro_batches_per_epoch=50, micro_batches=100, seconds=10.0)
    assert position.micro_batches_per_second(first) == pytest.approx(rate)

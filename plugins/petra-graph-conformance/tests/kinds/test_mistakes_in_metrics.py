"""Mistakes that authors of metrics make: means of means, a state for all, the wrong direction, logits as probabilities."""

from __future__ import annotations

import pytest
import torch
from petra_graph_conformance import MetricTrial
from petra_graph_conformance.examined_promises import examine

from petra_graph.plugins import MetricDeclaration
from tests.support.plugin_of_each_kind import declared


class Accuracy:
    def __init__(self, options):
        self.right, self.seen = 0, 0

    def update(self, output, target):
        self.right += int((output.argmax(1) == target).sum())
        self.seen += len(target)

    def compute(self):
        return self.right / self.seen


class MeanOfMeans(Accuracy):
    def update(self, output, target):
        self.right += float((output.argmax(1) == target).float().mean())
        self.seen += 1


class OfTheLastBatch(Accuracy):
    def update(self, output, target):
        self.right, self.seen = 0, 0
        super().update(output, target)


class OfTheClass(Accuracy):
    counts = dict.fromkeys(("right", "seen"), 0)

    def update(self, output, target):
        self.counts["right"] += int((output.argmax(1) == target).sum())
        self.counts["seen"] += len(target)

    def compute(self):
        return self.counts["right"] / self.counts["seen"]


class Error(Accuracy):
    def compute(self):
        return 1 - super().compute()


class Brier(Accuracy):
    """Of logits, as if they were probabilities."""

    def update(self, output, target):
        self.right += float((output - torch.nn.functional.one_hot(target, output.shape[1])).square().sum())
        self.seen += len(target)


class BrierOfSoftmax(Brier):
    def update(self, output, target):
        super().update(output.softmax(1), target)


def outcomes(metric, better):
    trial = MetricTrial.of(declared(MetricDeclaration, metric, better=better))
    return {one.promise: one for one in examine(trial).outcomes if one.found}


@pytest.mark.parametrize(
    ("metric", "better", "promise", "found", "remedy"),
    [
        (MeanOfMeans, "higher", "any batch size", "it is 0.5", "keep counts or sums"),
        (OfTheLastBatch, "higher", "any batch size", "in several batches", "keep counts or sums"),
        (OfTheClass, "higher", "state of its own", "another one of it has seen other samples", "__init__"),
        (Error, "higher", "direction", 'wrong ones 1, and its declaration says better = "higher"', 'better = "lower"'),
        (Brier, "lower", "logits", "where 1 is added to all of them, it is", "softmax"),
    ],
)
def test_a_mistake_is_found_by_its_promise(metric, better, promise, found, remedy):
    outcome = outcomes(metric, better)[promise]
    assert found in outcome.found
    assert remedy in outcome.remedy


@pytest.mark.parametrize(("metric", "better"), [(Accuracy, "higher"), (Error, "lower"), (BrierOfSoftmax, "lower")])
def test_a_right_metric_is_accepted(metric, better):
    assert outcomes(metric, better) == {}

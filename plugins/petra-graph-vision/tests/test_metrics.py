"""The metrics of this package against scikit-learn and plain computations, whatever the batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from petra_graph.planning.check_spec import ConfiguredPlugin
from petra_graph.plugins.contract import read_options
from petra_graph.plugins.kinds import METRIC
from petra_graph.plugins.registry import discover

REGISTRY = discover().only(["petra-graph-vision"])
ROUNDING = 1e-12
"""Of a mean of some numbers in float64."""


@pytest.fixture
def sklearn_metrics():
    """Imported where it is used: it takes longer than all tests of this file."""
    from sklearn import metrics

    return metrics


def value(name, output, target, batch=1000, **options):
    plugin = REGISTRY.resolve(METRIC, name)
    metric = ConfiguredPlugin(plugin=plugin, options=read_options(plugin, options, ())[0], path=()).build()
    for first in range(0, len(target), batch):
        metric.update(output[first : first + batch], target[first : first + batch])
    return metric.compute()[""]


def outputs(*shape, steps=None):
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    return drawn if steps is None else (steps * drawn).round()


def classes(*shape, count):
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("average", ["macro", "micro", "weighted"])
@pytest.mark.parametrize("used", [10, 4], ids=["all classes", "some classes"])
def test_f1_is_scikit_learns(average, used, sklearn_metrics):
    output, target = outputs(200, 10), classes(200, count=used)
    output[:, used + 2 :] = -100  # classes that are neither predicted nor there
    expected = sklearn_metrics.f1_score(target.numpy(), output.argmax(1).numpy(), average=average)
    assert value("f1", output, target, average=average) == pytest.approx(expected, rel=ROUNDING)
    assert value("f1", output, target, 7, average=average) == value("f1", output, target, average=average)


@pytest.mark.parametrize("steps", [None, 1], ids=["no ties", "ties"])
def test_auc_is_scikit_learns(steps, sklearn_metrics):
    output, target = outputs(300, 4, steps=steps), classes(300, count=4)
    scores = output.double().softmax(1)
    assert (len(set(scores[:, 0].tolist())) < 100) == (steps == 1)
    expected = sklearn_metrics.roc_auc_score(target.numpy(), scores.numpy(), multi_class="ovr")
    assert value("auc", output, target) == pytest.approx(expected, rel=ROUNDING)
    assert value("auc", output, target, 11) == value("auc", output, target)


def test_auc_leaves_out_classes_that_do_not_divide_the_targets(sklearn_metrics):
    output, target = outputs(80, 5), classes(80, count=2)
    shares = output.double().softmax(1)
    areas = [sklearn_metrics.roc_auc_score((target == one).numpy(), shares[:, one].numpy()) for one in range(2)]
    assert value("auc", output, target) == pytest.approx(sum(areas) / 2, rel=ROUNDING)
    assert math.isnan(value("auc", output, torch.ones_like(target)))


def test_mean_iou_is_that_of_a_plain_computation(sklearn_metrics):
    output, target = outputs(6, 5, 7, 9), classes(6, 7, 9, count=4)
    target[0] = -100
    predicted, wanted = output.argmax(1)[1:].numpy(), target[1:].numpy()
    pairs = [(predicted == one, wanted == one) for one in range(5)]
    expected = np.mean([(one & other).sum() / (one | other).sum() for one, other in pairs])
    assert value("mean-iou", output, target) == pytest.approx(expected, rel=ROUNDING)
    assert value("mean-iou", output, target, 2) == value("mean-iou", output, target)
    flat = sklearn_metrics.jaccard_score(wanted.ravel(), predicted.ravel(), average="macro")
    assert value("mean-iou", output, target) == pytest.approx(flat, rel=ROUNDING)


@pytest.mark.parametrize("name", ["f1", "auc", "mean-iou"])
def test_without_a_target_that_counts_there_is_no_value(name):
    assert math.isnan(value(name, outputs(4, 3), torch.full((4,), -100)))


@pytest.mark.parametrize(
    ("output", "target", "said"),
    [
        ((4, 1), torch.zeros(4, 1), r"outputs \[n, classes, ...\] and class indices \[n, ...\] \(got outputs \[4, 1\]"),
        ((4, 3), torch.zeros(4), "class indices"),
        ((4,), torch.zeros(4, dtype=torch.int64), "class indices"),
        ((4, 3), torch.full((4,), 3), r"targets must be classes 0..2, or -100 \(got 3..3\)"),
    ],
)
def test_what_cannot_be_compared_is_said(output, target, said):
    for name in ("f1", "auc"):
        with pytest.raises(Exception, match=said):
            value(name, torch.zeros(output), target)

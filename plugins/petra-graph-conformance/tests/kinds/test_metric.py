"""The promises of metrics: each is broken by a metric that is wrong in one way, and right ones keep all of them."""

from __future__ import annotations

import math
import random

import pytest
import torch
from attrs import evolve
from petra_graph_conformance import MetricTrial, classes_of, values_like
from petra_graph_conformance.examined_promises import examine

from petra_graph.kinds.metric import Scale, scale_of
from petra_graph.plugins import MetricDeclaration
from tests.support.kit import kept
from tests.support.plugin_of_each_kind import broken, declared


class Accuracy:
    """Counts; each class below has one mistake more."""

    def __init__(self, _options):
        self.right = self.seen = 0

    def update(self, output, target):
        self.right = self.right + (output.argmax(1) == target).sum()
        self.seen += target.numel()

    def compute(self):
        return self.right / self.seen


class Text(Accuracy):
    def compute(self):
        return f"{super().compute():.3f}"


class Nan(Accuracy):
    def compute(self):
        return super().compute() * math.nan


class Two(Accuracy):
    def compute(self):
        return torch.stack([super().compute()] * 2)


class Nothing(Accuracy):
    def compute(self):
        return {}


class Unnamed(Accuracy):
    def compute(self):
        return {1: super().compute()}


class Yes(Accuracy):
    def compute(self):
        return True


class PerCent(Accuracy):
    def compute(self):
        return 100 * super().compute()


class Graph(Accuracy):
    def compute(self):
        with torch.enable_grad():
            return super().compute() * torch.nn.Parameter(torch.ones(()))


class Raises(Accuracy):
    def update(self, output, target):
        raise KeyError("no such class")


class MeanOfBatches(Accuracy):
    def update(self, output, target):
        self.right = self.right + (output.argmax(1) == target).float().mean()
        self.seen += 1


class LastBatch(Accuracy):
    def update(self, output, target):
        self.right = self.seen = 0
        super().update(output, target)


class OfTheClass(Accuracy):
    counts = [0, 0]  # noqa: RUF012  the mistake

    def update(self, output, target):
        self.counts[0] += int((output.argmax(1) == target).sum())
        self.counts[1] += target.numel()

    def compute(self):
        return self.counts[0] / self.counts[1]


class Writes(Accuracy):
    def update(self, output, target):
        super().update(output.sub_(output.mean(1, keepdim=True)), target)


class Draws(Accuracy):
    def update(self, output, target):
        super().update(output, target)
        random.random()


class Errors(Accuracy):
    def compute(self):
        return 1 - super().compute()


class Brier(Accuracy):
    """Of logits, as if they were probabilities."""

    def update(self, output, target):
        self.right = self.right + (output - torch.nn.functional.one_hot(target, output.shape[1])).square().sum()
        self.seen += target.numel()


class BrierOfSoftmax(Brier):
    def update(self, output, target):
        super().update(output.softmax(1), target)


class Absolute(Accuracy):
    def update(self, output, target):
        self.right = self.right + (output - target).abs().sum().item()
        self.seen += target.numel()


class NoCompute:
    def __init__(self, _options):
        pass

    def update(self, output, target): ...


class OneArgument(Accuracy):
    def update(self, pair): ...


class Several(Accuracy):
    """Two values, one of which is better the smaller it is."""

    def compute(self):
        return {"right": super().compute(), "wrong": 1 - super().compute()}


class AsModule(torch.nn.Module):
    """As torchmetrics has them: a module whose counts are buffers, with other names of arguments, and `reset`."""

    higher_is_better = True

    def __init__(self, _options):
        super().__init__()
        self.register_buffer("right", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def update(self, preds, target):
        self.right += (preds.argmax(1) == target).sum()
        self.seen += target.numel()

    def compute(self):
        return self.right.float() / self.seen

    def reset(self):
        raise AssertionError("a new one is built for every evaluation")


def trial(metric, **more):
    settings = {name: more.pop(name) for name in ("output", "targets", "of_run") if name in more}
    return MetricTrial.of(declared(MetricDeclaration, metric, **more), **settings)


@pytest.mark.parametrize(
    ("metric", "promise", "found"),
    [
        (Text, "values", "its value is a str, not a number or a scalar tensor"),
        (Nan, "values", "its value is nan"),
        (Two, "values", "its value is a tensor of shape [2], not a scalar"),
        (Nothing, "values", "it computes no value: {}"),
        (Unnamed, "values", "one of its values is called 1, which is not a name"),
        (Yes, "values", "its value is a bool, not a number or a scalar tensor"),
        (PerCent, "values", "and its declaration says that it is a share: from 0 to 1"),
        (Graph, "values", "its value has a graph"),
        (Raises, "values", "failed on outputs [24, 10] and targets [24]: KeyError: 'no such class'"),
        (MeanOfBatches, "any batch size", "for one batch, and "),
        (LastBatch, "any batch size", "for one batch, and "),
        (OfTheClass, "state of its own", "another value where another one of it has seen other samples before"),
        (Writes, "untouched", "the output or the target has other values afterwards"),
        (Draws, "untouched", "it moved the global generator of python"),
        (Errors, "direction", 'its declaration says better = "higher"'),
        (NoCompute, "construction", "not an object with the method compute()"),
        (OneArgument, "construction", "its OneArgument.update(pair) cannot be called as update(output, target)"),
        (lambda _: Accuracy, "construction", "its build returns the class Accuracy, not an object"),
    ],
)
def test_it_is_caught(metric, promise, found):
    outcome = broken(trial(metric, share=True))
    assert found in outcome.pop(promise)
    assert set(outcome) <= {"any batch size"}, "what else is broken follows from it"


@pytest.mark.parametrize(
    ("metric", "more"),
    [
        (Accuracy, {"share": True}),
        (AsModule, {"share": True}),
        (Several, {"share": True}),
        (Errors, {"better": "lower", "share": True}),
        (Absolute, {"better": "lower", "targets": values_like, "output": (3,)}),
        (lambda _: Accuracy(None), {}),
    ],
)
def test_what_is_right_passes(metric, more):
    assert broken(trial(metric, **more)) == {}


def test_a_score_of_probabilities_that_reads_logits_is_a_doubt():
    doubt, *more = examine(trial(Brier, better="lower")).doubtful
    assert (doubt.promise, more) == ("logits", [])
    assert "where 1 is added to all of them, it is" in doubt.found
    assert "softmax" in doubt.remedy
    assert not examine(trial(BrierOfSoftmax, better="lower")).doubtful


def test_a_metric_that_is_undefined_on_targets_of_a_run_alone_is_right():
    """A ranking of a single class is NaN, and a run may have no others among its first targets."""

    class Ranking(Accuracy):
        kinds: frozenset = frozenset()

        def update(self, output, target):
            super().update(output, target)
            self.kinds = self.kinds | set(target.tolist())

        def compute(self):
            return super().compute() if len(self.kinds) > 1 else math.nan

    of_run = torch.full((8,), 3)
    assert broken(trial(Ranking, of_run=of_run)) == {}
    assert broken(trial(Nan, of_run=of_run))["values"] == "its value is nan"


def test_the_call_with_a_declaration():
    declaration = declared(MetricDeclaration, Accuracy, share=True)
    assert kept(MetricTrial.of(declaration, output=(4, 5), targets=classes_of)).kept
    with pytest.raises(AssertionError, match="breaks a promise"):
        kept(MetricTrial.of(evolve(declaration, better="lower")))


@pytest.mark.parametrize(("field", "value"), [("better", "more"), ("share", "yes")])
def test_a_declaration_says_no_other_words(field, value):
    assert f"has {field} = {value!r}, not one of" in next(
        MetricDeclaration(summary="x", build="a:b", **{field: value}).faults()
    )


@pytest.mark.parametrize(
    ("name", "better", "share"),
    [
        ("test/f1", "higher", True),
        ("f1", "higher", True),
        ("test/error/top1", "lower", False),
        ("test/loss", "lower", False),
        ("train/loss", "lower", False),
        ("test/top5", "higher", True),
        ("test/other", "higher", False),
    ],
)
def test_how_values_are_read(name, better, share):
    scales = {"f1": Scale(share=True), "error": Scale(better="lower")}
    assert scale_of(name, scales) == Scale(better=better, share=share)

"""Losses, each wrong in one way: the promise that it breaks says so."""

from __future__ import annotations

import pytest
import torch
from petra_graph_conformance import LossTrial, classes_of, values_like
from petra_graph_conformance.broken_promise import BrokenPromise
from petra_graph_conformance.kinds.loss_sums import check_mean, check_sample_by_sample
from petra_graph_conformance.kinds.loss_value import check_logits
from torch import nn
from torch.nn import functional

from petra_graph.plugins import LossDeclaration
from tests.support.kit import kept
from tests.support.plugin_of_each_kind import broken, declared


class Sound:
    def __init__(self, options):
        pass

    def __call__(self, output, target):
        return functional.cross_entropy(output.double(), target)

    def metrics(self, output, target):
        return {"top1": (output.argmax(1) == target).sum(), "margin": output.max(1).values.sum()}


class PerSample(Sound):
    def __call__(self, output, target):
        return functional.cross_entropy(output, target, reduction="none")


class Sums(Sound):
    def __call__(self, output, target):
        return functional.cross_entropy(output.double(), target, reduction="sum")


class Contrast(Sound):
    def __call__(self, output, target):
        return super().__call__(output - output.mean(0), target)


class Detached(Sound):
    def __call__(self, output, target):
        return super().__call__(output.detach(), target)


class Counts(Sound):
    def __call__(self, output, target):
        return (output.argmax(1) == target).float().mean() + 0 * output.sum()


class Overflows(Sound):
    def __call__(self, output, target):
        return super().__call__(output, target) + (output * 1e300).square().mean()


class MeanMetrics(Sound):
    def metrics(self, output, target):
        return {"margin": output.max(1).values.mean()}


class MeanOfRight(Sound):
    """Random targets hid it: 0 right of 3, of 1 and of 4."""

    def metrics(self, output, target):
        return {"top1": (output.argmax(1) == target).float().mean()}


class NoMetrics(Sound):
    def metrics(self, output, target):
        return None


class MetricWithGraph(Sound):
    def __init__(self, options):
        self.weight = torch.ones((), requires_grad=True)

    @torch.enable_grad()
    def metrics(self, output, target):
        return {"x": (output * self.weight).sum()}


class OtherNames(Sound):
    def metrics(self, output, target):
        return {f"of {len(output)}": torch.ones(())}


class CountsPixels(Sound):
    def metrics(self, output, target):
        return {"top1": (output.argmax(1) == target).sum()}


class WritesToTheOutput(Sound):
    def metrics(self, output, target):
        output.clamp_(max=0.1)
        return {}


class Noisy(Sound):
    def __call__(self, output, target):
        return super().__call__(output, target) * (1 + torch.rand(()))


class Learns(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output, target):
        return functional.cross_entropy(output.double() * self.scale, target)

    def metrics(self, output, target):
        return {}


class Squares(Sound):
    def __call__(self, output, target):
        return functional.mse_loss(output.double(), target.double())

    def metrics(self, output, target):
        return {"absolute": (output - target).abs().sum()}


class InFewDigits(Sound):
    def __call__(self, output, target):
        return super().__call__(output, target).bfloat16()


class CancelsOut(Sound):
    """Samples' losses of either sign, whose mean is near zero."""

    def __call__(self, output, target):
        each = functional.cross_entropy(output.float(), target, reduction="none")
        return ((each - each.detach()) + 1e3 * (2 * (output.detach().sum(1) > 0) - 1)).mean() + 1e-3


class Unstated(Sound):
    """Torch's mean: by the weights of classes, of which four are passed over."""

    weights = torch.arange(10.0, dtype=torch.float64) % 3

    def __call__(self, output, target):
        weights = self.weights[target]
        each = functional.cross_entropy(output.double(), target, reduction="none")
        return ((each * weights).sum() / weights.sum()).to(output.dtype)

    def metrics(self, output, target):
        hits = (output.argmax(1) == target) * self.weights[target]
        return {"top1": hits.sum()}


class Weighted(Unstated):
    def target_weight(self, target):
        return self.weights[target].sum()

    target_count = target_weight


class CountsSamples(Weighted):
    metrics = Sound.metrics

    def target_count(self, target):
        return len(target)


class WeightAlone(Unstated):
    def target_weight(self, target):
        return self.weights[target].sum()


class CountAlone(Unstated):
    def target_count(self, target):
        return len(target)


class AverageWeight(Weighted):
    def target_weight(self, target):
        return self.weights[target].mean()


class AverageCount(Weighted):
    def target_count(self, target):
        return self.weights[target].mean()


class NotANumber(Weighted):
    def target_weight(self, target):
        return float("nan")


def trial(build, **settings):
    return LossTrial.of(declared(LossDeclaration, build), **settings)


def test_what_is_sound_passes():
    assert str(kept(LossTrial.of(declared(LossDeclaration, Sound)))).endswith(
        "(outputs [10]; NoOptions()) keeps 12 promises"
    )
    assert kept(LossTrial.of(declared(LossDeclaration, Squares), output=(3, 2), targets=values_like)).kept
    assert kept(LossTrial.of(declared(LossDeclaration, InFewDigits))).kept
    assert kept(LossTrial.of(declared(LossDeclaration, CancelsOut))).kept
    assert kept(LossTrial.of(declared(LossDeclaration, Weighted))).kept
    assert kept(LossTrial.of(declared(LossDeclaration, CountsSamples))).kept
    assert kept(LossTrial.of(declared(LossDeclaration, Sound), output=(4,), samples=5, seed=3)).kept


class OfADictionary(Sound):
    """Classes and boxes, each with its own output."""

    def __call__(self, output, target):
        labels = functional.cross_entropy(output["logits"], target["label"])
        return labels + (output["boxes"] - target["box"]).abs().mean()

    def metrics(self, output, target):
        return super().metrics(output["logits"], target["label"])


class SumsBoxes(OfADictionary):
    def __call__(self, output, target):
        return (output["boxes"] - target["box"]).abs().sum()


class WritesToTheTarget(OfADictionary):
    def __call__(self, output, target):
        target["box"].zero_()
        return super().__call__(output, target)


class ReadsThePair(Sound):
    def __call__(self, output, target):
        first, second = output
        return functional.cross_entropy(first, target) + functional.cross_entropy(second, target)

    def metrics(self, output, target):
        return {}


def of_both(output, generator):
    return {"label": classes_of(output["logits"], generator), "box": values_like(output["boxes"], generator)}


def test_a_loss_of_several_outputs_and_targets_is_tried_with_them():
    several = {"output": {"logits": (5,), "boxes": (4,)}, "targets": of_both}
    assert kept(LossTrial.of(declared(LossDeclaration, OfADictionary), **several)).kept
    assert "mean of theirs one by one" in broken(trial(SumsBoxes, **several))["mean over samples"]
    assert "other values afterwards" in broken(trial(WritesToTheTarget, **several))["untouched"]
    pair = {"output": [(5,), (5,)], "targets": lambda output, generator: classes_of(output[0], generator)}
    assert kept(LossTrial.of(declared(LossDeclaration, ReadsThePair), **pair)).kept


@pytest.mark.parametrize(
    ("build", "promise", "found"),
    [
        (lambda options: None, "construction", "its build returns None"),
        (lambda options: functional.cross_entropy, "construction", "a function without the method `metrics`"),
        (Learns, "construction", "it has parameters that nothing trains: scale"),
        (PerSample, "scalar", "it returns a tensor of shape [8], not a scalar"),
        (Detached, "scalar", "it returns a scalar without a graph"),
        (Counts, "scalar", "its gradient is zero (outputs in float64)"),
        (Overflows, "scalar", "is not finite (outputs in float64)"),
        (Sums, "mean over samples", "and the mean of theirs one by one"),
        (Contrast, "mean over samples", "and the mean of theirs one by one"),
        (Unstated, "mean over samples", "and the mean of theirs one by one"),
        (WeightAlone, "construction", "it has target_weight without target_count: the one is what the loss weighs"),
        (CountAlone, "construction", "it has target_count without target_weight: "),
        (AverageWeight, "weights", "the target_weight of 8 samples is "),
        (AverageCount, "weights", "the target_count of 8 samples is "),
        (NotANumber, "weights", "its target_weight is nan, not a finite number of at least 0"),
        (MeanMetrics, "metrics", '"margin" of 8 samples is '),
        (MeanOfRight, "metrics", '"top1" of 8 samples is '),
        (NoMetrics, "metrics", "its metrics are None, not a mapping from names to sums"),
        (MetricWithGraph, "metrics", 'its metric "x" has a graph'),
        (OtherNames, "metrics", "batches of other sizes have other metrics"),
        (WritesToTheOutput, "untouched", "the output or the target has other values afterwards"),
        (Noisy, "untouched", "the same output and target have another loss when it is asked again"),
    ],
)
def test_it_is_caught(build, promise, found):
    assert found in broken(trial(build))[promise]


def test_a_count_of_pixels_is_no_share_of_samples():
    found = broken(trial(CountsPixels, output=(2, 6, 6)))
    assert set(found) == {"shares"}
    assert '"top1" counts ' in found["shares"]
    assert " of 8 samples, a share of " in found["shares"]


class Ascends(Sound):
    def __call__(self, output, target):
        return -super().__call__(output, target)


class Critic(Sound):
    """As of Wasserstein: it has no bound, and that is meant."""

    def __call__(self, output, target):
        return torch.where(target > 4, output.double().mean(1), -output.double().mean(1)).mean()


class Gaussian(Sound):
    """The mean and the logarithm of the variance of five values; its values may be below zero."""

    def __call__(self, output, target):
        mean, log = output.double().chunk(2, dim=1)
        return (log + (target[:, None] - mean).square() * (-log).exp()).mean()


class Poisson(Sound):
    def __call__(self, output, target):
        return functional.poisson_nll_loss(output.double(), target[:, None].expand_as(output))


class Margin(Sound):
    def __call__(self, output, target):
        return functional.multi_margin_loss(output.double(), target)


class Angle(Sound):
    def __call__(self, output, target):
        return -functional.cosine_similarity(output.double(), functional.one_hot(target, 10)).mean()


class FocusedOnFew(Sound):
    def __call__(self, output, target):
        each = functional.cross_entropy(output.double(), target, reduction="none")
        return ((1 - (-each).exp()).square() * each).mean()


class RefusesTheFar(Sound):
    def __call__(self, output, target):
        assert output.abs().max() < 100
        return super().__call__(output, target)


@pytest.mark.parametrize("build", [Ascends, Critic])
def test_a_loss_that_falls_without_bound_is_a_doubt(build):
    report = kept(LossTrial.of(declared(LossDeclaration, build)))
    assert report.doubtful[0].promise == "bounded"
    assert "down the gradient of its outputs it falls by" in report.doubtful[0].found


@pytest.mark.parametrize("build", [Sound, Gaussian, Poisson, Margin, Angle, FocusedOnFew, RefusesTheFar])
def test_a_loss_that_has_a_bound_is_none(build):
    report = kept(LossTrial.of(declared(LossDeclaration, build)))
    assert "bounded" not in [outcome.promise for outcome in report.doubtful]


def probabilities(output):
    return LossTrial.of(declared(LossDeclaration, Sound), head=lambda: output)


def test_probabilities_for_a_loss_that_takes_the_softmax():
    output = torch.randn(3, 10)
    for doubtful in (output.softmax(1), torch.eye(10)[:3]):
        with pytest.raises(
            BrokenPromise, match="the head returns probabilities, which sum to 1, and this loss takes their softmax"
        ):
            check_logits(probabilities(doubtful))
    for right in (output, output.log_softmax(1), output.sigmoid(), output.relu()):
        check_logits(probabilities(right))
    check_logits(LossTrial.of(declared(LossDeclaration, Gaussian), head=lambda: output.softmax(1)))


class OfNumbers(Sound):
    """One output a sample, [n, 1], and numbers [n]."""

    def __call__(self, output, target):
        return (output.double().squeeze(1) - target).square().mean()


class OfPairs(OfNumbers):
    """Every output less every target, [n, n]."""

    def __call__(self, output, target):
        return (output.double() - target).square().mean()


def test_outputs_that_are_compared_with_other_samples_targets_are_a_doubt_before_a_run():
    def of_run(build):
        declaration = declared(LossDeclaration, build)
        return LossTrial.of(declaration, output=(1,), of_run=(build(None), torch.randn(8)))

    check_sample_by_sample(of_run(OfNumbers))
    check_mean(of_run(OfPairs))
    with pytest.raises(BrokenPromise, match=r"one by one .* for outputs \[8, 1\] and targets \[8\]") as broken:
        check_sample_by_sample(of_run(OfPairs))
    assert broken.value.remedy.startswith("see that their shapes agree (output.squeeze(1)")

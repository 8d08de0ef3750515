"""Mistakes that authors of losses make with classes: targets that are passed over, or shifted, and a softmax too many."""

from __future__ import annotations

import pytest
import torch
from petra_graph_conformance import LossTrial
from petra_graph_conformance.examined_promises import examine
from petra_graph_conformance.kinds.loss_trial import likely_losses
from torch.nn import functional

from petra_graph.plugins import LossDeclaration
from tests.support.plugin_of_each_kind import declared


class Sound:
    def __init__(self, options):
        pass

    def __call__(self, output, target):
        return functional.cross_entropy(output.double(), target)

    def metrics(self, output, target):
        return {}


class CountsIgnored(Sound):
    def __call__(self, output, target):
        return functional.cross_entropy(output.double(), target, reduction="none").mean()


class ClampsIgnored(Sound):
    def __call__(self, output, target):
        return super().__call__(output, target.clamp(min=0))


class WeighsIgnored(Sound):
    def target_weight(self, target):
        return len(target)

    target_count = target_weight


class Shifted(Sound):
    def __call__(self, output, target):
        return super().__call__(output, torch.where(target < 0, target, (target + 1) % output.shape[1]))


class SoftmaxTwice(Sound):
    def __call__(self, output, target):
        return super().__call__(output.softmax(1), target)


class WeighsClasses(Sound):
    def __call__(self, output, target):
        return functional.cross_entropy(output.double(), target, weight=torch.linspace(1, 2, output.shape[1]).double())


@pytest.mark.parametrize(
    ("loss", "promise", "status", "found", "remedy"),
    [
        (
            WeighsClasses,
            "mean over samples",
            "broken",
            "times as much as class",
            "give the loss the method target_weight(target)",
        ),
        (CountsIgnored, "ignored targets", "doubtful", "the loss of 4 samples is", "not passed over"),
        (
            ClampsIgnored,
            "ignored targets",
            "doubtful",
            "a target of -100 is learnt as if it were class 0",
            "ignore_index",
        ),
        (
            WeighsIgnored,
            "ignored targets",
            "doubtful",
            "target_weight counts targets of -100: 8 with them",
            "count those",
        ),
        (Shifted, "right class", "broken", "predict class c + 1 surely have the least loss", "0 .. classes - 1"),
        (
            SoftmaxTwice,
            "sure mistakes",
            "doubtful",
            "for a wrong class, and of 0 for the others",
            "leave out the softmax",
        ),
    ],
)
def test_a_mistake_is_found_by_its_promise(loss, promise, status, found, remedy):
    outcomes = [one for one in examine(LossTrial.of(declared(LossDeclaration, loss))).outcomes if one.found]
    assert [(one.promise, one.status) for one in outcomes] == [(promise, status)]
    assert found in outcomes[0].found
    assert remedy in outcomes[0].remedy


class Smooth(Sound):
    def __call__(self, output, target):
        return functional.cross_entropy(output.double(), target, label_smoothing=0.1)


class Refuses(Sound):
    def __call__(self, output, target):
        return (output.double() - functional.one_hot(target, output.shape[1])).square().mean()


class Hinge(Sound):
    def __call__(self, output, target):
        return functional.multi_margin_loss(output.double(), target)


class Ordinal(Sound):
    """Thresholds between ordered classes."""

    def __call__(self, output, target):
        if bool((target < 0).any()):
            raise ValueError("every sample has a class")
        above = (target[:, None] > torch.arange(output.shape[1])).to(output.dtype)
        return functional.binary_cross_entropy_with_logits(output, above)


class OfTokens(Sound):
    def __call__(self, output, target):
        return functional.cross_entropy(output.double().movedim(-1, 1), target)


@pytest.mark.parametrize("loss", [Sound, Smooth, Refuses, Hinge, Ordinal, OfTokens])
def test_a_right_loss_is_accepted(loss):
    trials = likely_losses(LossTrial.of(declared(LossDeclaration, loss)).plugin, None, {})
    trial = next(one for one in trials if loss is not OfTokens or one.output == (6, 10))
    assert [one for one in examine(trial).outcomes if one.found] == []

"""Broken on purpose: statistics, random numbers, streams. The function that checks the promise catches each."""

from __future__ import annotations

import functools
import itertools
import random

import numpy as np
import pytest
import torch
from torch import nn

from petra_graph.blocks import (
    Head,
    Reversible,
    frozen_statistics,
)
from petra_graph_conformance import (
    Trial,
    check_block,
    check_evaluation_mode,
    check_inverse,
    check_randomness,
    check_shapes,
    check_statistics,
    check_streams_untouched,
)
from tests.support.blocks import SHAPE, Sound, Stem, caught


class Mean(nn.Module):
    """Running statistics of one's own, which follow torch's switch."""

    def __init__(self):
        super().__init__()
        self.track_running_stats = True
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        if self.training and self.track_running_stats:
            self.mean.lerp_(x.detach().mean().to(self.mean.dtype), 0.1)
        return x


class Follows(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.running = Mean()

    def residual(self, x):
        return self.running(super().residual(x))


class CountsTwice(Follows):
    """Its submodule does not say that it keeps statistics, so nothing can switch them off."""

    def residual(self, x):
        self.running.mean.lerp_(x.detach().mean(), 0.1)
        return Sound.residual(self, x)


class NeverCounts(Follows):
    def reverse_vjp(self, outputs, gradients):
        with frozen_statistics(self):
            return super().reverse_vjp(outputs, gradients)


class CountsInInverse(Follows):
    def reverse_vjp(self, outputs, gradients):
        with torch.no_grad():
            self.inverse(*outputs)
        return super().reverse_vjp(outputs, gradients)


class CountsCalls(Sound):
    """Nothing that it returns says so, until it counts to a thousand."""

    calls = 0

    def residual(self, x):
        self.calls += 1
        return super().residual(x) * (1 if self.calls < 1000 else 2)


class CountsInAnObject(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.log = {"seen": [itertools.count()]}

    def residual(self, x):
        next(self.log["seen"][0])
        return super().residual(x)


class Spectral(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        nn.utils.parametrizations.spectral_norm(self.linear)


class MovingCodebook(Sound):
    """A codebook that follows its inputs, as a plain tensor."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.register_buffer("codes", torch.zeros(6))

    def residual(self, x):
        if self.training:
            self.codes.lerp_(x.detach().mean(0).to(self.codes.dtype), 0.1)
        return super().residual(x) + self.codes


class Caches(Sound):
    """Keeps what it has seen last, for people to look at."""

    def residual(self, x):
        self.seen, self.how, self.thing = x.detach(), lambda: None, object()
        return super().residual(x)


class CachesConstants(Sound):
    size = 0

    @functools.cached_property
    def scale(self):
        return 0.5

    def residual(self, x):
        self.size = x.shape[1]
        return super().residual(x) * self.scale


def test_a_constant_that_is_made_at_the_first_use_is_no_state():
    check_block(CachesConstants, [SHAPE, SHAPE])


class MakesABuffer(Sound):
    def residual(self, x):
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.ones_like(x[0]))
        return super().residual(x) * self.table


def test_a_cache_of_the_last_micro_batch_is_no_state():
    check_statistics(Trial.of(Caches, [SHAPE, SHAPE]))


def test_statistics_of_ones_own_are_held():
    check_block(Follows, [SHAPE, SHAPE])


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (CountsTwice, "running.mean changed in a forward without a graph, so each micro-batch counts twice"),
        (NeverCounts, "running.mean moved by 0.00e+00 relative; one training forward moves it by"),
        (CountsCalls, "calls moved in a forward without a graph, so each micro-batch counts two or three times"),
        (MakesABuffer, "table was made in a forward without a graph"),
        (CountsInAnObject, "log moved in a forward without a graph"),
        (
            Spectral,
            "linear.parametrizations.weight.0._u, linear.parametrizations.weight.0._v changed in a forward without",
        ),
        (MovingCodebook, "codes changed in a forward without a graph"),
        (CountsInInverse, "over forward and backward of one micro-batch running.mean moved by"),
    ],
)
def test_statistics_that_count_wrongly(block, message):
    assert message in caught(check_statistics, block)


class Dropout(Sound):
    def residual(self, x):
        return nn.functional.dropout(super().residual(x), 0.5, self.training)


class DropsInEvaluation(Sound):
    def residual(self, x):
        return nn.functional.dropout(super().residual(x), 0.5)


class Centres(Sound):
    """Its outputs in an evaluation depend on the batch."""

    def residual(self, x):
        return super().residual(x) - x.mean(0)


class SwitchesModes(Dropout):
    """Overrides `train`, and returns nothing."""

    def train(self, mode=True):
        super().train(mode)


def test_a_block_may_have_a_train_of_its_own():
    check_block(SwitchesModes, [SHAPE, SHAPE])


class NoRunningStatistics(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.norm = nn.BatchNorm1d(6, track_running_stats=False)

    def residual(self, x):
        return self.norm(super().residual(x))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (DropsInEvaluation, "random numbers were drawn"),
        (Centres, "a batch's outputs are not those of its samples"),
        (NoRunningStatistics, "a batch, or one of its samples alone, raised ValueError at"),
    ],
)
def test_an_evaluation_that_depends_on_more_than_the_sample(block, message):
    assert message in caught(check_evaluation_mode, block)


class NumpyNoise(Sound):
    def residual(self, x):
        return super().residual(x) * np.random.rand()  # noqa: NPY002  the global generator is the point


class DrawsInVain(Sound):
    def residual(self, x):
        random.random()
        np.random.rand()  # noqa: NPY002  the global generator is the point
        return super().residual(x)


class OwnGenerator(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.generator = torch.Generator().manual_seed(0)

    def residual(self, x):
        return super().residual(x) * torch.rand((), generator=self.generator, dtype=x.dtype)


class SeedsItself(Dropout):
    def residual(self, x):
        torch.default_generator.manual_seed(0)
        return super().residual(x)


class SeedsLater(Dropout):
    """Its outputs differ, and what the next layer draws would not."""

    def residual(self, x):
        found = super().residual(x)
        torch.default_generator.manual_seed(0)
        return found


class DropsSeldom(Sound):
    """Stochastic depth, which lets most micro-batches pass whole."""

    def residual(self, x):
        kept = x.new_empty(len(x), 1).bernoulli_(0.99) / 0.99 if self.training else 1
        return super().residual(x) * kept


class OtherMasksInBackward(Dropout):
    def reverse_vjp(self, outputs, gradients):
        torch.rand(())
        return super().reverse_vjp(outputs, gradients)


def test_dropout_is_held():
    check_block(Dropout, [SHAPE, SHAPE])


@pytest.mark.parametrize("seed", range(3))
def test_two_micro_batches_may_have_the_same_masks(seed):
    """Equal outputs were taken for a block that seeds itself, at any rate but one half."""
    check_randomness(Trial.of(DropsSeldom, [SHAPE, SHAPE], seed=seed))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (NumpyNoise, "the same micro-batch drew other numbers: outputs differ by up to"),
        (OwnGenerator, "the same micro-batch drew other numbers"),
        (DrawsInVain, "training moved the global generator of numpy and python"),
        (SeedsItself, "the block seeds torch's generator, so all micro-batches draw the same"),
        (SeedsLater, "the block seeds torch's generator"),
    ],
)
def test_random_numbers_that_follow_from_no_key(block, message):
    assert message in caught(check_randomness, block)


def test_other_masks_in_backward():
    assert "reverse_vjp reconstructs is not x" in caught(check_inverse, OtherMasksInBackward)


class Halves(Reversible):
    streams = 1

    def forward(self, x):
        return (x[:, ::2],)

    def inverse(self, y):
        return (y.repeat_interleave(2, dim=1),)


class Keeps(Halves):
    def inverse(self, y):
        return (y,)


class Refuses(Halves):
    def inverse(self, y):
        raise ValueError("which half?")


def test_a_reversible_block_may_change_shapes_where_its_inverse_returns_them():
    """Down-sampling that loses nothing had to leave the promise out."""
    check_shapes(Trial.of(Halves, [SHAPE]))
    assert "inverse(*forward(*x)) is not x" in caught(check_inverse, Halves)


class Listed(Stem):
    def forward(self, x):
        return [self.linear(x)]


class OneForAll(Stem):
    def forward(self, x):
        return (self.linear(x).mean(0, keepdim=True),)


class Single(Stem):
    def forward(self, x):
        return (self.linear(x).float(),)


class TwoHeaded(Head):
    streams = 1

    def forward(self, x):
        return x, x


class ReturnsTuples(Sound):
    def reverse_vjp(self, outputs, gradients):
        found = super().reverse_vjp(outputs, gradients)
        return found.inputs, found.gradients


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            ReturnsTuples,
            "reverse_vjp returned tuple\n    do: return petra_graph.blocks.Reversed(inputs, gradients): two tuples",
        ),
        (Keeps, "4x6 came in, and 4x3 came out; the inverse returns 4x3"),
        (Refuses, "4x6 came in, and 4x3 came out; the inverse raised ValueError at"),
        (Listed, "forward returned list"),
        (OneForAll, "4 samples came in, and 1x4 came out"),
        (Single, "an output is float32 where parameters and inputs are float64"),
    ],
)
def test_wrong_shapes(block, message):
    assert message in caught(check_shapes, block)


def test_a_head_may_return_several():
    check_block(TwoHeaded, [(3,)])


class ReluInPlace(Sound):
    def residual(self, x):
        with torch.no_grad():
            nn.functional.relu_(x)
        return super().residual(x)


class AddsIntoGradient(Sound):
    def reverse_vjp(self, outputs, gradients):
        found = super().reverse_vjp(outputs, gradients)
        gradients[0].add_(gradients[1])
        return found


class SubtractsInPlace(Sound):
    def reverse_vjp(self, outputs, gradients):
        found = super().reverse_vjp(outputs, gradients)
        outputs[0].copy_(found.inputs[1])
        return found


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (ReluInPlace, "forward changed its input stream 0 in place, by up to"),
        (AddsIntoGradient, "backward changed its gradient stream 0 in place"),
        (SubtractsInPlace, "backward changed its output stream 0 in place"),
    ],
)
def test_streams_changed_in_place(block, message):
    assert message in caught(check_streams_untouched, block)

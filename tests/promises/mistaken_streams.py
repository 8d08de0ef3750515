"""Blocks that treat their streams, state or random numbers in unusual ways: most of them wrong, some of them right."""

from __future__ import annotations

import functools
import itertools
import random

import numpy as np
import torch
from torch import nn

from petra_graph.blocks import (
    Head,
    Reversible,
    frozen_statistics,
    micro_batch,
)
from tests.support.blocks import Sound, Stem


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


class MakesABuffer(Sound):
    def residual(self, x):
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.ones_like(x[0]))
        return super().residual(x) * self.table


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


class NoRunningStatistics(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.norm = nn.BatchNorm1d(6, track_running_stats=False)

    def residual(self, x):
        return self.norm(super().residual(x))


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


class DropsUnsaid(DropsSeldom):
    draws = False


class WarmsUpUnsaid(Sound):
    draws = False

    def residual(self, x):
        at = micro_batch()
        return super().residual(x) * (1.0 if at is None else min(1.0, (at + 1) / 4))


class OtherMasksInBackward(Dropout):
    def reverse_vjp(self, outputs, gradients):
        torch.rand(())
        return super().reverse_vjp(outputs, gradients)


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

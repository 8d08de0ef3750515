"""Broken on purpose: inverses, gradients, recomputations. The function that checks the promise catches each."""

from __future__ import annotations

import pytest
import torch
from petra_graph_conformance import BrokenPromise, Trial
from petra_graph_conformance.blocks.inverse_and_gradients import check_gradients, check_inverse, check_one_evaluation
from petra_graph_conformance.blocks.parameters_and_precision import check_parameters
from petra_graph_conformance.blocks.repeatable_evaluation import check_recomputation
from torch import nn

from petra_graph.blocks import (
    Reversed,
    Reversible,
    TwoFunctionCoupling,
)
from tests.support.blocks import SHAPE, Scaled, Sound, Stem, caught
from tests.support.kit import ask, kept


@pytest.mark.parametrize("block", [Sound, Scaled, Stem])
def test_what_is_sound_passes(block):
    kept(Trial.of(block, [SHAPE] * block.streams))


class ForgetsTheFactor(Scaled):
    def inverse(self, y):
        return (y,)


class SubtractsTwice(Sound):
    def inverse(self, y, s):
        return s, y - 2 * self.residual(s)


class ReconstructsSomethingElse(Sound):
    def reverse_vjp(self, outputs, gradients):
        found = super().reverse_vjp(outputs, gradients)
        return Reversed(tuple(stream + 1e-9 for stream in found.inputs), found.gradients)


class RemembersHowOften(Sound):
    calls = 0

    def residual(self, x):
        self.calls += 1
        return super().residual(x) * self.calls


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (ForgetsTheFactor, r"inverse: inverse\(\*forward\(\*x\)\) is not x: relative error \S+ in float64"),
        (
            SubtractsTwice,
            r"inverse\(\*forward\(\*x\)\) is not x: relative error \S+ in float64, allowed 9.1e-13\n    do: ",
        ),
        (ReconstructsSomethingElse, "reverse_vjp reconstructs is not x: relative error 9.5e-10"),
        (RemembersHowOften, "is not x"),
    ],
)
def test_a_wrong_inverse(block, message):
    inputs = [SHAPE] * block.streams
    with pytest.raises(BrokenPromise, match=message):
        check_inverse(Trial.of(block, inputs))


class RoundsToFloat32(Scaled):
    def forward(self, x):
        return (x.float().to(x.dtype) * self.log.exp(),)


def test_an_inverse_that_holds_in_float32_only():
    assert "in float64" in caught(check_inverse, RoundsToFloat32)


class InvertsThenDifferentiates(Sound):
    reverse_steps = Reversible.reverse_steps


class SkipsF(TwoFunctionCoupling):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(6, 6)

    def f(self, x):
        return self.linear(x)

    def g(self, x):
        return self.f(x)


def test_more_than_one_evaluation():
    assert caught(check_one_evaluation, InvertsThenDifferentiates) == (
        "one evaluation: `residual` was evaluated 2 times in one backward\n"
        "    do: leave reverse_steps to the coupling; each more evaluation costs a backward a fourth of a step"
    )
    assert "`f` was evaluated 2 times" in caught(check_one_evaluation, SkipsF)


class LosesASummand(Sound):
    def reverse_vjp(self, outputs, gradients):
        found = super().reverse_vjp(outputs, gradients)
        return Reversed(found.inputs, (found.gradients[0] - gradients[1], found.gradients[1]))


class Overwrites(Sound):
    def reverse_vjp(self, outputs, gradients):
        for parameter in self.parameters():
            parameter.grad = None
        return super().reverse_vjp(outputs, gradients)


class LearnsByItself(Sound):
    def residual(self, x):
        with torch.no_grad():
            self.linear.bias.add_(1e-15)
        return super().residual(x)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (LosesASummand, "the gradient of the input is not plain autograd's: relative error"),
        (Overwrites, "the gradient of the parameters over 3 micro-batches is not plain autograd's"),
    ],
)
def test_wrong_gradients(block, message):
    assert message in caught(check_gradients, block)


def test_a_block_that_learns_by_itself():
    assert "forward or backward changed the values of linear.bias" in caught(check_parameters, LearnsByItself)


class Counts(Stem):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return (self.linear(x) + self.calls,)


class AsksForGradients(Stem):
    def forward(self, x):
        return (self.linear(x) * (2 if torch.is_grad_enabled() else 1),)


@pytest.mark.parametrize("block", [Counts, AsksForGradients])
def test_a_recomputation_that_gives_something_else(block):
    assert "gives other outputs when it is evaluated again" in caught(check_recomputation, block)


class Spare(Sound):
    """Its second layer is not used."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.spare = nn.Linear(2, 2)


class Detaches(Spare):
    def residual(self, x):
        return super().residual(x) + self.spare.weight.detach().sum()


class WithoutGraph(Spare):
    def residual(self, x):
        with torch.no_grad():
            scale = self.spare.weight.sum()
        return super().residual(x) * scale


@pytest.mark.parametrize("block", [Spare, Detaches, WithoutGraph])
def test_a_parameter_that_no_gradient_reaches(block):
    with pytest.raises(BrokenPromise, match=r"no gradient reaches .*spare.weight.* in 16 micro-batches"):
        ask(Trial.of(block, [SHAPE, SHAPE]), "every parameter")


class Frozen(Spare):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.spare.requires_grad_(False)


class DropsALayer(Spare):
    """Three times of four, as stochastic depth does."""

    def residual(self, x):
        scale = self.spare.weight.sum() + self.spare.bias.sum() if torch.rand(()) < 0.25 else 0.0
        return super().residual(x) + scale


class FixedDraws(Frozen):
    """Begins with fixed random numbers, from a generator of its own and from torch's, which it gives back."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        own = torch.Generator().manual_seed(7)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            drawn = torch.rand(2, 2)
        self.register_buffer("projection", torch.randn(2, 2, generator=own) + drawn)


@pytest.mark.parametrize("block", [Frozen, DropsALayer, FixedDraws])
def test_blocks_that_are_unusual_and_right(block):
    trial = Trial.of(block, [SHAPE, SHAPE])
    for promise in ("construction", "same block", "gradients", "every parameter"):
        ask(trial, promise)

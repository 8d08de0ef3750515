"""Each promise, broken on purpose, is caught by the function that checks it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from attrs import define, frozen
from torch import nn

from petra_graph.blocks import (
    AdditiveCoupling,
    BlockDeclaration,
    Buffered,
    Head,
    Reversed,
    Reversible,
    TwoFunctionCoupling,
    frozen_statistics,
)
from petra_graph.testing import (
    BrokenPromise,
    Trial,
    check_autocast,
    check_block,
    check_declaration,
    check_evaluation_mode,
    check_gradients,
    check_imports_no_torch,
    check_inverse,
    check_meta_device,
    check_one_evaluation,
    check_randomness,
    check_recomputation,
    check_shapes,
    check_state_dict,
    check_statistics,
    check_streams_untouched,
)

SHAPE = (6,)


class Sound(AdditiveCoupling):
    """What all others are a broken variant of."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(inputs[0][0], inputs[0][0])

    def residual(self, x):
        return torch.tanh(self.linear(x))


class Scaled(Reversible):
    """One stream times a positive factor."""

    streams = 1

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.log = nn.Parameter(torch.zeros(inputs[0]))

    def forward(self, x):
        return (x * self.log.exp(),)

    def inverse(self, y):
        return (y / self.log.exp(),)


class Stem(Buffered):
    """One stream through a linear layer."""

    streams = 1

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(inputs[0][0], 4)

    def forward(self, x):
        return (self.linear(x),)


def caught(check, block, **options):
    """The message of the broken promise."""
    inputs = [SHAPE] * (block.streams or 1)
    with pytest.raises(BrokenPromise) as error:
        check(Trial.of(block, inputs, **options))
    return str(error.value)


@pytest.mark.parametrize("block", [Sound, Scaled, Stem])
def test_what_is_sound_passes(block):
    check_block(block, [SHAPE] * block.streams)


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
    reverse_vjp = Reversible.reverse_vjp


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
        "    do: leave reverse_vjp to the coupling; each more evaluation costs a backward a fourth of a step"
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
        (LearnsByItself, "forward or backward changed parameters"),
    ],
)
def test_wrong_gradients(block, message):
    assert message in caught(check_gradients, block)


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


def test_statistics_of_ones_own_are_held():
    check_block(Follows, [SHAPE, SHAPE])


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (CountsTwice, "running.mean changed in a forward without a graph, so each micro-batch counts twice"),
        (NeverCounts, "running.mean moved by 0.00e+00 relative; one training forward moves it by"),
        (CountsInInverse, "over forward and backward of one micro-batch running.mean moved by"),
    ],
)
def test_statistics_that_count_wrongly(block, message):
    assert message in caught(check_statistics, block)


class Dropout(Sound):
    def residual(self, x):
        return nn.functional.dropout(super().residual(x), 0.5)


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


class OtherMasksInBackward(Dropout):
    def reverse_vjp(self, outputs, gradients):
        torch.rand(())
        return super().reverse_vjp(outputs, gradients)


def test_dropout_is_held():
    check_block(Dropout, [SHAPE, SHAPE], leave_out=["evaluation mode"])


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (NumpyNoise, "the same micro-batch drew other numbers: outputs differ by up to"),
        (OwnGenerator, "the same micro-batch drew other numbers"),
        (DrawsInVain, "training moved the global generator of numpy and python"),
        (SeedsItself, "the block draws random numbers, and two micro-batches drew the same"),
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


class Bare(Stem):
    def forward(self, x):
        return self.linear(x)


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


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Halves, "4x6 came in, and 4x3 came out"),
        (Bare, "forward returned Tensor"),
        (OneForAll, "4 samples came in, and 1x4 came out"),
        (Single, "an output is float32 where parameters and inputs are float64"),
        (TwoHeaded, "a head returned 2 streams"),
    ],
)
def test_wrong_shapes(block, message):
    assert message in caught(check_shapes, block)


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


class ReversesInFloat32(Sound):
    def reverse_vjp(self, outputs, gradients):
        with torch.autocast("cpu", enabled=False):
            return super().reverse_vjp(outputs, gradients)


def test_another_type_in_backward():
    message = caught(check_autocast, ReversesInFloat32)
    assert "returned bfloat16 in forward and float32 in backward" in message


class HiddenScale(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.scale = torch.rand(inputs[0], dtype=torch.float64)

    def residual(self, x):
        return super().residual(x) * self.scale


class RandomWidth(Stem):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(6, int(torch.randint(1, 10**4, ())))


def test_what_the_state_dictionary_does_not_hold():
    assert "a block that has loaded it gives other outputs in training mode" in caught(check_state_dict, HiddenScale)
    assert "another block of the same options does not take it: size mismatch" in caught(check_state_dict, RandomWidth)


class CentresTheBatch(Stem):
    def forward(self, x):
        return (self.linear(x - x.mean(0)),)


class AlwaysCounts(Stem):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return super().forward(x)


class AlwaysDrops(Stem):
    def forward(self, x):
        return super().forward(nn.functional.dropout(x))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (CentresTheBatch, "a batch's outputs are not those of its samples: relative error"),
        (AlwaysCounts, "seen changed"),
        (AlwaysDrops, "random numbers were drawn"),
    ],
)
def test_evaluation_that_is_none(block, message):
    assert message in caught(check_evaluation_mode, block)


class ReadsValues(Sound):
    def residual(self, x):
        return super().residual(x) * (2 if x.sum().item() > 0 else 1)


class LeavesAConstantBehind(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.scale = torch.ones(inputs[0])

    def residual(self, x):
        return super().residual(x) * self.scale


def test_what_the_meta_device_cannot_run():
    message = caught(check_meta_device, ReadsValues)
    assert f"built there, it raised RuntimeError at {__file__}:" in message
    assert "moved there, it raised RuntimeError" in caught(check_meta_device, LeavesAConstantBehind)


@define
class Loose:
    size: int = 3


@frozen(kw_only=True)
class Kept:
    size: int = 3


class Tunable(Sound):
    Options = Kept


class LooseTunable(Sound):
    Options = Loose


class Pretends(Buffered):
    kind = "reversible"

    def forward(self, x):
        return (x,)


def declaration(block, **changes):
    own = {"kind": block.kind, "streams": block.streams, "options": block.Options}
    return BlockDeclaration(summary="A block.", build=f"{__name__}:{block.__name__}", **{**own, **changes})


def test_declarations_that_disagree_with_their_class():
    def message(declared, count=2):
        with pytest.raises(BrokenPromise) as error:
            check_declaration(Trial.of(declared, [SHAPE] * count))
        return str(error.value)

    check_declaration(Trial.of(declaration(Tunable), [SHAPE, SHAPE], {"size": 4}))
    assert "it declares kind = 'buffered', and Tunable has 'reversible'" in message(
        declaration(Tunable, kind="buffered")
    )
    assert "it declares streams = 3, and Tunable has 2" in message(declaration(Tunable, streams=3))
    assert "it declares options = " in message(declaration(Sound, options=Kept))
    assert "it has no summary" in message(BlockDeclaration(summary="", build=f"{__name__}:Sound", kind="reversible"))
    assert "options class Loose can be changed or takes positional values" in message(declaration(LooseTunable))
    assert "it reads 2 streams, and the trial has 1 inputs" in message(declaration(Sound), 1)
    assert "Pretends does not subclass Reversible" in message(declaration(Pretends), 1)


@pytest.mark.processes
def test_declarations_that_import_torch():
    check_imports_no_torch("petra_graph.registry.contracts")
    with pytest.raises(BrokenPromise, match=r"no torch: importing petra_graph\.blocks imports torch"):
        check_imports_no_torch("petra_graph.blocks")

"""A backward in parts, R then I then W, has the bits of the whole one."""

from __future__ import annotations

import copy

import pytest
import torch
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from petra_graph.blocks import (
    AdditiveCoupling,
    NoOptions,
    Reversible,
    SpaceToDepth,
    TwoFunctionCoupling,
    can_reconstruct_ahead,
    deferred_gradients,
)
from petra_graph.blocks.randomness import fork_rng
from petra_graph.promises.micro_batches_through_block import gradients_for
from tests.blocks.couplings.test_couplings import (
    BLOCKS,
    ONE,
    ExactBdia,
    Options,
    TwoFunctionsWithContext,
    branch,
    integers_last,
    on_grid,
)

CPU = torch.device("cpu")


class Inverted(Reversible):
    """Reversible by an inverse alone, with statistics and dropout: the default backward."""

    Options = Options
    streams = 2

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.inner = branch(inputs[0][0], inputs[0][0], options.dropout)

    def forward(self, x, t):
        return t + self.inner(x), x

    def inverse(self, y, s):
        return s, y - self.inner(s)


class TwoFunctions(TwoFunctionCoupling):
    """Both functions share a layer, so that its gradient is a sum over both."""

    Options = Options

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        width = inputs[0][0]
        self.first, self.second = (branch(width, width, options.dropout) for _ in range(2))
        self.shared = nn.Linear(width, width)

    def f(self, x):
        return self.first(self.shared(x))

    def g(self, x):
        return self.shared(self.second(x))


@frozen
class Factor:
    factor: int = 2


def normal(shape, generator):
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def bits_last(shape, generator):
    """The streams of the quantised step; its third is set below."""
    return on_grid(shape, generator)


CASES = {
    **{name: (block, inputs, block.Options(), normal) for name, (block, inputs) in BLOCKS.items()},
    "inverted": (Inverted, ONE * 2, Options(), normal),
    "two functions": (TwoFunctions, ONE * 2, Options(), normal),
    "two functions, context": (TwoFunctionsWithContext, [*ONE * 3, (1,)], Options(), integers_last),
    "exact bdia": (ExactBdia, ONE * 3, Options(), bits_last),
    "space to depth": (SpaceToDepth, [(3, 4, 6), (2, 4, 6)], Factor(), normal),
}


def drawn(name, dtype, seed, batch):
    """Return a block, its outputs and their gradients."""
    block_class, inputs, options, draw = CASES[name]
    torch.manual_seed(seed)
    block = block_class(inputs, options).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    streams = [draw((batch, *shape), generator) for shape in inputs]
    if name == "exact bdia":
        streams[2] = (streams[2] > 0).long()
    streams = [stream.to(dtype) if stream.is_floating_point() else stream for stream in streams]
    with torch.no_grad(), fork_rng(7, CPU):
        outputs = block(*streams)
    for parameter in block.parameters():
        parameter.grad = torch.randn_like(parameter)  # of an earlier micro-batch in the window
    return block, outputs, gradients_for(seed % 3, outputs)


def state(block):
    return {**block.state_dict(), **{f"d {name}": one.grad for name, one in block.named_parameters()}}


def expect_equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), batch=st.integers(2, 6), ends=st.integers(0, 1))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_parts_have_the_bits_of_the_whole(name, dtype, seed, batch, ends):
    whole, outputs, gradients = drawn(name, dtype, seed, batch)
    parts = copy.deepcopy(whole)
    for one, other in zip(parts.parameters(), whole.parameters(), strict=True):
        one.grad = None if ends else other.grad.clone()
        other.grad = None if ends else other.grad
    with fork_rng(7, CPU):
        expected = whole.reverse_vjp(outputs, gradients)

    given_before = [one.clone() for one in (*outputs, *gradients)]
    before = {name: None if one.grad is None else one.grad.clone() for name, one in parts.named_parameters()}
    with fork_rng(7, CPU):
        reconstruction = parts.reconstruct(outputs)
    expect_equal(reconstruction.inputs, expected.inputs)
    for key, value in whole.named_buffers():
        assert torch.equal(dict(parts.named_buffers())[key], value)  # running statistics change in R
    with deferred_gradients() as deferred:
        found = reconstruction.vjp(gradients)
    expect_equal(
        [one for one in found if one.is_floating_point()],
        [one for one in expected.gradients if one.is_floating_point()],
    )
    for key, one in parts.named_parameters():  # nothing is added in I
        assert (one.grad is None) if before[key] is None else torch.equal(one.grad, before[key])
    deferred.accumulate()
    of_parts, of_whole = state(parts), state(whole)
    assert of_parts.keys() == of_whole.keys()
    for key, value in of_whole.items():
        assert (value is None) == (of_parts[key] is None)
        assert value is None or torch.equal(of_parts[key], value), key
    expect_equal([*outputs, *gradients], given_before)


def test_w_alone_adds_and_adds_once():
    block, outputs, gradients = drawn("two functions", torch.float32, 0, 4)
    block.zero_grad()
    reconstruction = block.reconstruct(outputs)
    with deferred_gradients() as deferred:
        reconstruction.vjp(gradients)
    assert all(parameter.grad is None for parameter in block.parameters())
    deferred.accumulate()
    once = [parameter.grad.clone() for parameter in block.parameters()]
    deferred.accumulate()
    expect_equal([parameter.grad for parameter in block.parameters()], once)


def test_neither_i_nor_w_evaluates_a_function():
    block, outputs, gradients = drawn("two functions", torch.float32, 0, 4)
    calls = []
    for module in block.modules():
        module.register_forward_hook(lambda *_: calls.append(1))
    reconstruction = block.reconstruct(outputs)
    done = len(calls)
    assert done > 0
    with deferred_gradients() as deferred:
        reconstruction.vjp(gradients)
    deferred.accumulate()
    assert len(calls) == done


class Plain(AdditiveCoupling):
    def residual(self, x):
        return x


class OwnWhole(Plain):
    def reverse_vjp(self, outputs, gradients):
        return super().reverse_vjp(outputs, gradients)


class OwnSteps(Plain):
    def reverse_steps(self):
        return super().reverse_steps()


class OwnStepsBelow(OwnWhole):
    def reverse_steps(self):
        return super().reverse_steps()


class OwnBoth(Plain):
    def reverse_vjp(self, outputs, gradients):
        return super().reverse_vjp(outputs, gradients)

    def reconstruct(self, outputs):
        return super().reconstruct(outputs)


class Whole:
    """A class beside the coupling."""

    def reverse_vjp(self, outputs, gradients):
        return super().reverse_vjp(outputs, gradients)


class Mixed(Whole, OwnSteps):
    pass


class AsTheBase(Plain):
    reverse_vjp = Reversible.reverse_vjp


@pytest.mark.parametrize(
    ("block_class", "can"),
    [
        (Plain, True),
        (OwnWhole, False),
        (OwnSteps, True),
        (OwnStepsBelow, True),
        (OwnBoth, True),
        (Mixed, False),
        (AsTheBase, True),
        (Inverted, True),
    ],
)
def test_a_block_that_overrides_the_whole_alone_has_no_parts(block_class, can):
    options = Options() if block_class is Inverted else NoOptions()
    assert can_reconstruct_ahead(block_class(ONE * 2, options)) is can

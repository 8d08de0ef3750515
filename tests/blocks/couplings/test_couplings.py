"""Every coupling keeps every promise of a block; its gradient is plain autograd's, its formula the paper's."""

from __future__ import annotations

from collections import Counter
from itertools import cycle, pairwise

import pytest
import torch
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from petra_graph.blocks import (
    AdditiveCoupling,
    AffineCoupling,
    BdiaCoupling,
    ChannelPermutation,
    ColumnCoupling,
    ExactBdiaCoupling,
    LeapfrogCoupling,
    MidpointCoupling,
    MomentumCoupling,
    OrthogonalMixing,
    RingCoupling,
    SpaceToDepth,
    TwoFunctionCoupling,
    backpropagate,
    leaf,
    option,
)
from petra_graph.blocks.grid import grid
from petra_graph.blocks.randomness import fork_rng
from petra_graph.testing import Trial
from petra_graph.testing.block_checks import check_gradients, check_inverse
from petra_graph.testing.block_trial import Harness, drawn_gradients
from tests.support.examples import examples
from tests.support.kit import kept

FEATURES = 6
EXAMPLES = 20


@frozen(kw_only=True)
class Options:
    """How much is dropped."""

    dropout: float = option("probability of dropping a feature", default=0.3)


def branch(inputs, outputs, dropout):
    return nn.Sequential(nn.Linear(inputs, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, outputs))


class OneFunction:
    Options = Options

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.inner = branch(inputs[0][0], inputs[0][0], options.dropout)

    def residual(self, x, *context):
        return self.inner(sum(context, start=x))


class Additive(OneFunction, AdditiveCoupling):
    pass


class Affine(AffineCoupling):
    Options = Options

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.inner = branch(inputs[0][0], 2 * inputs[0][0], options.dropout)

    def scale_and_shift(self, x, *context):
        return self.inner(sum(context, start=x)).chunk(2, 1)


class Midpoint(OneFunction, MidpointCoupling):
    step_size = 0.3


class Leapfrog(OneFunction, LeapfrogCoupling):
    step_size = 0.7


class Momentum(OneFunction, MomentumCoupling):
    pass


class Bdia(OneFunction, BdiaCoupling):
    pass


class ExactBdia(OneFunction, ExactBdiaCoupling):
    pass


class Ring(OneFunction, RingCoupling):
    streams = coupled = 4


class Column(ColumnCoupling):
    """Levels of three widths, each with a learned scale."""

    Options = Options

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        widths = [shape[0] for shape in inputs[:3]]
        self.below = nn.ModuleList(branch(*pair, options.dropout) for pair in pairwise(widths))
        self.above = nn.ModuleList(branch(*pair, options.dropout) for pair in zip(widths[1:], widths, strict=False))
        self.scales = nn.ParameterList(torch.ones(width) for width in widths[1:])

    def level(self, index, below, above, *context):
        values = [sum(context)] if context and not index else []
        values += [] if below is None else [self.below[index - 1](below)]
        values += [] if above is None else [self.above[index](above)]
        return sum(values)

    def scale(self, index):
        return self.scales[index - 1] if index else 0.9


def with_context(block_class, streams):
    return type(f"{block_class.__name__}WithContext", (block_class,), {"streams": streams})


class TwoFunctionsWithContext(TwoFunctionCoupling):
    """Both functions read two further streams, of which one is a mask of integers."""

    Options = Options
    streams = 4

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.first, self.second = (branch(inputs[0][0], inputs[0][0], options.dropout) for _ in range(2))

    def f(self, x, memory, mask):
        return self.first(x + memory) * mask

    def g(self, x, memory, mask):
        return self.second(x * memory + mask)


ONE = [(FEATURES,)]
COUPLINGS = {
    "affine": (Affine, ONE * 2),
    "midpoint": (Midpoint, ONE * 2),
    "leapfrog": (Leapfrog, ONE * 2),
    "momentum": (Momentum, ONE * 2),
    "bdia": (Bdia, ONE * 2),
    "ring": (Ring, ONE * 4),
    "column": (Column, [(6,), (3,), (4,)]),
    "additive, context": (with_context(Additive, 4), ONE * 4),
    "affine, context": (with_context(Affine, 3), ONE * 3),
    "midpoint, context": (with_context(Midpoint, 3), ONE * 3),
    "momentum, context": (with_context(Momentum, 3), ONE * 3),
    "ring, context": (with_context(Ring, 6), ONE * 6),
    "column, context": (with_context(Column, 5), [(6,), (3,), (4,), (6,), (6,)]),
}
BLOCKS = {
    **COUPLINGS,
    "permutation": (ChannelPermutation, [(4, 2, 2), (3, 2, 2)]),
    "rotation": (OrthogonalMixing, [(4, 2, 2), (3, 2, 2)]),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_it_keeps_every_promise(name):
    block, inputs = BLOCKS[name]
    kept(Trial.of(block, inputs))


@examples(EXAMPLES)
@given(seed=st.integers(0, 2**32), batch=st.integers(2, 6))
@pytest.mark.parametrize("name", BLOCKS)
def test_it_is_inverted_and_its_gradients_are_plain_autograds(name, seed, batch):
    """Both within 9e-13 in float64."""
    block, inputs = BLOCKS[name]
    trial = Trial.of(block, inputs, batch=batch, seed=seed)
    check_inverse(trial)
    check_gradients(trial)


@pytest.mark.parametrize("name", COUPLINGS)
def test_its_backward_evaluates_each_function_once(name, monkeypatch):
    block, inputs = COUPLINGS[name]
    harness, counts = Harness(Trial.of(block, inputs)), Counter()
    outputs = harness.forward(0, harness.inputs(0))
    for function in block.functions:
        original = getattr(harness.block, function)

        def counted(*arguments, of=function, original=original):
            counts[of, arguments[0] if of == "level" else 0] += 1
            return original(*arguments)

        monkeypatch.setattr(harness.block, function, counted)
    harness.backward(0, outputs, drawn_gradients(0, outputs))
    assert set(counts.values()) == {1}
    assert len(counts) == (3 if "column" in name else len(block.functions))


def integers_last(shape, generator):
    """A mask, where the shape is the mask's."""
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return values if shape[1] == FEATURES else (values > 0).long()


def test_functions_read_masks_which_have_no_gradient():
    kept(Trial.of(TwoFunctionsWithContext, [*ONE * 3, (1,)], draw=integers_last))


def on_grid(shape, generator):
    """Multiples of 2^-9."""
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (values * 512).round() / 512


def test_quantised_bdia_keeps_every_promise():
    kinds = cycle([False, False, True])

    def draw(shape, generator):
        values = on_grid(shape, generator)
        return (values > 0).long() if next(kinds) else values

    kept(Trial.of(ExactBdia, ONE * 3, draw=draw))


def bdia_streams(depth, dtype, batch=4):
    generator = torch.Generator().manual_seed(depth)
    x, previous = (on_grid((batch, FEATURES), generator).to(dtype) for _ in range(2))
    blocks = [ExactBdia(ONE * 3, Options(dropout=0.0)).to(dtype) for _ in range(depth)]
    for block in blocks:
        block.inner[1] = nn.Identity()  # statistics do not matter here
    return blocks, (x, previous, torch.zeros_like(x, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantised_bdia_is_exact_to_the_bit_at_63_blocks(dtype):
    """Its sibling in floating point has lost every digit by then."""
    blocks, streams = bdia_streams(63, dtype)
    outputs = streams
    with torch.no_grad():
        for key, block in enumerate(blocks):
            with fork_rng(key, torch.device("cpu")):
                outputs = block(*outputs)
        found = outputs
        for key, block in reversed(list(enumerate(blocks))):
            with fork_rng(key, torch.device("cpu")):
                found = block.inverse(*found)
    assert all(torch.equal(one, other) for one, other in zip(found, streams, strict=True))
    assert outputs[2].count_nonzero() > 0


def test_the_gradient_of_quantised_bdia_is_plain_autograds():
    (block,), streams = bdia_streams(1, torch.float64)
    leaves = tuple(map(leaf, streams))
    with fork_rng(3, torch.device("cpu")):
        outputs = block(*leaves)
    gradients = drawn_gradients(0, outputs)
    expected = backpropagate(outputs, gradients, leaves)
    of_parameters = [parameter.grad.clone() for parameter in block.parameters()]
    block.zero_grad()
    with fork_rng(3, torch.device("cpu")):
        reverse = block.reverse_vjp(tuple(stream.detach() for stream in outputs), gradients)
    for found, plain in zip(reverse.gradients[:2], expected[:2], strict=True):
        torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-12)
    for parameter, plain in zip(block.parameters(), of_parameters, strict=True):
        torch.testing.assert_close(parameter.grad, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("block_class", [Bdia, ExactBdia])
def test_in_evaluation_bdia_is_the_plain_residual_network_and_has_no_inverse(block_class):
    block = block_class(ONE * block_class.streams, Options()).double().eval()
    generator = torch.Generator().manual_seed(0)
    x, previous = (on_grid((4, FEATURES), generator) for _ in range(2))
    streams = (x, previous, torch.zeros_like(x, dtype=torch.int64))[: block_class.streams]
    with torch.no_grad():
        outputs = block(*streams)
    torch.testing.assert_close(outputs[0], x + block.inner(x), rtol=0, atol=2.0**-9)
    for call in (block.inverse, lambda *outputs: block.reverse_vjp(outputs, outputs)):
        with pytest.raises(RuntimeError, match="is in evaluation mode, where its step"):
            call(*outputs)


X, T = torch.randn(2, 4, FEATURES, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def quiet(block_class, inputs=None):
    return block_class(inputs or ONE * 2, Options()).double().eval()


def test_the_affine_coupling_is_realnvps():
    block = quiet(Affine)
    raw, shift = block.inner(X).chunk(2, 1)
    y, x = block(X, T)
    torch.testing.assert_close(y, T * torch.tanh(raw).exp() + shift)
    assert torch.equal(x, X)
    block.log_scale_bound = 1e-9
    torch.testing.assert_close(block(X, T)[0], T + shift)


def test_the_steps_are_the_papers():
    midpoint, leapfrog, momentum = quiet(Midpoint), quiet(Leapfrog), quiet(Momentum)
    torch.testing.assert_close(midpoint(X, T)[0], T + 2 * 0.3 * midpoint.inner(X))
    torch.testing.assert_close(leapfrog(X, T)[0], 2 * X - T + 0.7**2 * leapfrog.inner(X))
    velocity = 0.9 * T + 0.1 * momentum.inner(X)
    for found, expected in zip(momentum(X, T), (X + velocity, velocity), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_momentum_network_is_a_two_step_method():
    """x_{n+1} = (1 + g) x_n - g x_{n-1} + (1 - g) F(x_n)."""
    block = quiet(Momentum)
    y, _ = block(X, T)
    before = X - T
    torch.testing.assert_close(y, 1.9 * X - 0.9 * before + 0.1 * block.inner(X))


def test_a_ring_of_two_is_the_swap_form():
    class Two(OneFunction, RingCoupling):
        streams = coupled = 2

    ring, swap = quiet(Two), quiet(Additive)
    ring.load_state_dict(swap.state_dict())
    assert all(torch.equal(*pair) for pair in zip(ring(X, T), swap(X, T), strict=True))


def test_bdia_draws_a_sign_for_each_sample():
    block = Bdia(ONE * 2, Options(dropout=0.0)).double()
    block.inner[1] = nn.Identity()
    x, previous = torch.randn(2, 64, FEATURES, dtype=torch.float64)
    y, _ = block(x, previous)
    value = block.inner(x)
    signs = [
        [torch.allclose(row, (1 - g) * of_x + g * before + (1 + g) * f) for g in (0.5, -0.5)]
        for row, of_x, before, f in zip(y, x, previous, value, strict=True)
    ]
    assert all(sum(pair) == 1 for pair in signs)
    assert 16 < sum(pair[0] for pair in signs) < 48


@pytest.mark.parametrize("block_class", [Midpoint, Leapfrog, Ring])
def test_those_that_only_add_are_exact_on_a_grid(block_class):
    """At a depth of 24, in float32."""
    inputs = ONE * block_class.streams
    generator = torch.Generator().manual_seed(0)
    streams = tuple(on_grid((4, FEATURES), generator).float() for _ in inputs)
    blocks = [block_class(inputs, Options()).eval() for _ in range(24)]
    with torch.no_grad(), grid(9):
        outputs = streams
        for block in blocks:
            outputs = block(*outputs)
        for block in reversed(blocks):
            outputs = block.inverse(*outputs)
    assert all(torch.equal(*pair) for pair in zip(outputs, streams, strict=True))


def test_a_rotation_keeps_lengths():
    block = OrthogonalMixing([(4, 2, 2), (3, 2, 2)], None).double()
    streams = torch.randn(5, 4, 2, 2, dtype=torch.float64), torch.randn(5, 3, 2, 2, dtype=torch.float64)
    outputs = block(*streams)
    lengths = [sum((stream**2).sum(1) for stream in found) for found in (outputs, streams)]
    torch.testing.assert_close(*lengths)


def test_space_to_depth_changes_shapes_and_keeps_all_promises():
    inputs = [(3, 4, 6), (2, 4, 6)]
    kept(Trial.of(SpaceToDepth, inputs, {"factor": 2}))
    images = torch.randn(2, 3, 4, 6), torch.randn(2, 2, 4, 6)
    block = SpaceToDepth(inputs, SpaceToDepth.Options(factor=2))
    outputs = block(*images)
    assert [tuple(stream.shape) for stream in outputs] == [(2, 12, 2, 3), (2, 8, 2, 3)]
    for found, image in zip(outputs, images, strict=True):
        assert torch.equal(found, nn.functional.pixel_unshuffle(image, 2))
    assert all(torch.equal(*pair) for pair in zip(block.inverse(*outputs), images, strict=True))
    with pytest.raises(ValueError, match=r"sides of images must be multiples of 2 \(got \[3, 5, 6\]\)"):
        SpaceToDepth([(3, 5, 6)], SpaceToDepth.Options())

"""Couplings, and reversible blocks that are none: the input follows from the output, whatever the functions inside."""

from __future__ import annotations

import pytest
import torch
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from petra_graph.blocks import AdditiveCoupling, Reversible, TwoFunctionCoupling, option
from petra_graph.testing import Trial
from petra_graph.testing.block_checks import check_gradients, check_inverse
from tests.support.examples import examples
from tests.support.kit import kept

FEATURES = 6
EXAMPLES = 25
"""Of every block."""


@frozen(kw_only=True)
class Options:
    """How much is dropped."""

    dropout: float = option("probability of dropping a feature", default=0.0)


def branch(features, dropout):
    return nn.Sequential(
        nn.Linear(features, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, features)
    )


class Swap(AdditiveCoupling):
    """(x, t) -> (t + F(x), x)."""

    Options = Options

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.inner = branch(inputs[0][0], options.dropout)

    def residual(self, x):
        return self.inner(x)


class TwoFunctions(TwoFunctionCoupling):
    """y1 = x1 + F(x2);  y2 = x2 + G(y1)."""

    Options = Options

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.first = branch(inputs[0][0], options.dropout)
        self.second = branch(inputs[0][0], options.dropout)

    def f(self, x):
        return self.first(x)

    def g(self, x):
        return self.second(x)


class Affine(Reversible):
    """x -> a x + b, element by element: no coupling, and only an inverse of its own."""

    streams = 1

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.log_scale = nn.Parameter(torch.zeros(inputs[0]))
        self.shift = nn.Parameter(torch.zeros(inputs[0]))

    def forward(self, x):
        return (x * self.log_scale.exp() + self.shift,)

    def inverse(self, y):
        return ((y - self.shift) / self.log_scale.exp(),)


class Noisy(Affine):
    """It draws, and both evaluations of its default backward must draw the same."""

    Options = Options

    def noise(self, x):
        return nn.functional.dropout(torch.ones_like(x), self.options.dropout, self.training) + 1

    def forward(self, x):
        (y,) = super().forward(x)
        return (y * self.noise(x),)

    def inverse(self, y):
        return super().inverse(y / self.noise(y))


class AffineCoupling(Reversible):
    """(x, t) -> (x, t exp(s(x)) + u(x)), as normalising flows have it, with running statistics inside."""

    streams = 2

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.inner = branch(inputs[0][0], 0.0)
        self.outer = nn.Linear(inputs[0][0], inputs[0][0])

    def forward(self, x, t):
        return x, t * torch.tanh(self.inner(x)).exp() + self.outer(x)

    def inverse(self, x, y):
        return x, (y - self.outer(x)) / torch.tanh(self.inner(x)).exp()


class ThreeStreams(Reversible):
    """(x, t, u) -> (t + tanh(x), u, x)."""

    streams = 3

    def forward(self, x, t, u):
        return t + torch.tanh(x), u, x

    def inverse(self, y, u, x):
        return x, y - torch.tanh(x), u


class Viewing(AdditiveCoupling):
    """F only views its input, so that gradients may share memory."""

    def residual(self, x):
        return x.flatten(1).unflatten(1, x.shape[1:])


class Constant(AdditiveCoupling):
    """F does not depend on its input, and has no parameters."""

    def residual(self, x):
        return torch.ones_like(x)


class PartlyUnused(Swap):
    """One parameter has no part in F."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.unused = nn.Parameter(torch.ones(3))


DROPPED = Options(dropout=0.4)
ALL_BLOCKS = {
    "swap": (Swap, None),
    "swap, dropout": (Swap, DROPPED),
    "two functions": (TwoFunctions, None),
    "two functions, dropout": (TwoFunctions, DROPPED),
    "affine": (Affine, None),
    "noisy": (Noisy, DROPPED),
    "affine coupling": (AffineCoupling, None),
    "three streams": (ThreeStreams, None),
    "viewing": (Viewing, None),
    "constant": (Constant, None),
    "partly unused": (PartlyUnused, None),
}


@pytest.mark.parametrize("block", ALL_BLOCKS)
def test_it_keeps_every_promise(block):
    block_class, options = ALL_BLOCKS[block]
    leave_out = ["every parameter"] if block == "partly unused" else []
    kept(Trial.of(block_class, [(FEATURES,)] * block_class.streams, options), leave_out=leave_out)


@examples(EXAMPLES)
@given(seed=st.integers(0, 2**32), batch=st.integers(2, 6), features=st.integers(1, 8))
@pytest.mark.parametrize("block", ALL_BLOCKS)
def test_it_is_inverted_at_any_shape(block, seed, batch, features):
    block_class, options = ALL_BLOCKS[block]
    inputs = [(features,)] * block_class.streams
    check_inverse(Trial.of(block_class, inputs, options, batch=batch, seed=seed))


@examples(EXAMPLES)
@given(seed=st.integers(0, 2**32), batch=st.integers(2, 6))
@pytest.mark.parametrize("block", ALL_BLOCKS)
def test_its_gradients_are_plain_autograds(block, seed, batch):
    block_class, options = ALL_BLOCKS[block]
    inputs = [(FEATURES,)] * block_class.streams
    check_gradients(Trial.of(block_class, inputs, options, batch=batch, seed=seed))


@given(depth=st.integers(1, 24), seed=st.integers(0, 2**32))
def test_a_deep_stack_is_inverted(depth, seed):
    """Rounding grows with depth; 24 couplings stay within a thousand roundings."""
    generator = torch.Generator().manual_seed(seed)
    streams = tuple(torch.randn(4, FEATURES, generator=generator, dtype=torch.float64) for _ in range(2))
    blocks = [Swap(((FEATURES,),) * 2, Options()).double() for _ in range(depth)]
    with torch.no_grad():
        outputs = streams
        for block in blocks:
            outputs = block(*outputs)
        for block in reversed(blocks):
            outputs = block.inverse(*outputs)
    for found, expected in zip(outputs, streams, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e3 * torch.finfo(torch.float64).eps)


def test_the_swap_form_is_the_papers():
    block = Swap(((FEATURES,),) * 2, Options()).eval()
    x, t = torch.randn(2, 4, FEATURES)
    y, s = block(x, t)
    assert torch.equal(y, t + block.inner(x))
    assert torch.equal(s, x)


def test_the_two_function_form_is_gomezs():
    block = TwoFunctions(((FEATURES,),) * 2, Options()).eval()
    x1, x2 = torch.randn(2, 4, FEATURES)
    y1, y2 = block(x1, x2)
    assert torch.equal(y1, x1 + block.first(x2))
    assert torch.equal(y2, x2 + block.second(y1))


class Masks(TwoFunctionCoupling):
    """F and G return the masks that they draw."""

    def f(self, x):
        return nn.functional.dropout(torch.ones_like(x))

    g = f


def test_the_two_functions_draw_different_masks():
    trial = Trial.of(Masks, [(32,)] * 2)
    numerics = trial.numerics("float64")
    x1, x2 = trial.streams(numerics, 0)
    with numerics.node("node", 0):
        y1, y2 = trial.build(numerics)(x1, x2)
    assert not torch.equal(y1 - x1 > 1, y2 - x2 > 1)


@pytest.mark.parametrize("block", ALL_BLOCKS)
def test_outside_training_a_block_is_a_plain_module(block):
    """No key is in force: it runs, and its inverse undoes it."""
    block_class, options = ALL_BLOCKS[block]
    made = block_class(((FEATURES,),) * block_class.streams, options or block_class.Options()).double().eval()
    streams = [torch.randn(4, FEATURES, dtype=torch.float64) for _ in range(block_class.streams)]
    with torch.no_grad():
        for found, expected in zip(made.inverse(*made(*streams)), streams, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


class TakesNames(AdditiveCoupling):
    """An author calls a layer what they like."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self._f = nn.Linear(inputs[0][0], inputs[0][0])

    def residual(self, x):
        return self._f(x)


class TakesBothNames(TwoFunctionCoupling):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self._f, self._g = (nn.Linear(inputs[0][0], inputs[0][0]) for _ in range(2))

    def f(self, x):
        return self._f(x)

    def g(self, x):
        return self._g(x)


@pytest.mark.parametrize("block", [TakesNames, TakesBothNames])
def test_names_inside_a_coupling_are_its_authors(block):
    kept(Trial.of(block, [(FEATURES,)] * 2))


class Broadcasts(AdditiveCoupling):
    """F's value can be added to the stream, and its gradient cannot be taken."""

    def residual(self, x):
        return x.mean(1, keepdim=True)


def test_a_residual_of_another_shape_is_refused():
    block = Broadcasts(((FEATURES,),) * 2, Broadcasts.Options())
    with pytest.raises(
        ValueError, match=r"residual must return a tensor of its input's shape, \[4, 6\] \(got \[4, 1\]\)"
    ):
        block(*torch.randn(2, 4, FEATURES))

"""Every reversible block is inverted, and its gradient is plain autograd's, whatever the functions inside; formulas are those of the papers."""

from collections import Counter
from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from petra_graph.blocks import (
    AdditiveCoupling,
    AffineCoupling,
    DualResidualEntry,
    DualResidualStep,
    MomentumCoupling,
    Reversible,
    TwoFunctionCoupling,
    backpropagate,
    frozen_statistics,
    leaf,
)
from petra_graph.blocks.couplings import undo_sum
from petra_graph.blocks.randomness import fork_rng

FEATURES = 6
A, B = 0.8, 0.5
CPU = torch.device("cpu")


def branch(inputs, outputs, dropout):
    return nn.Sequential(nn.Linear(inputs, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, outputs))


class OneFunction:
    def __init__(self, inputs, *, dropout: float = 0.3, **options):
        super().__init__(inputs, **options)
        self.inner = branch(inputs[0][0], inputs[0][0], dropout)

    def residual(self, x, *context):
        return self.inner(sum(context, start=x))


class Additive(OneFunction, AdditiveCoupling): ...


class Momentum(OneFunction, MomentumCoupling): ...


class Affine(AffineCoupling):
    def __init__(self, inputs, *, dropout: float = 0.3):
        super().__init__(inputs)
        self.inner = branch(inputs[0][0], 2 * inputs[0][0], dropout)

    def scale_and_shift(self, x, *context):
        return self.inner(sum(context, start=x)).chunk(2, 1)


class TwoFunctions(TwoFunctionCoupling):
    """Further streams are a memory and a mask of integers."""

    def __init__(self, inputs, *, dropout: float = 0.3):
        super().__init__(inputs)
        self.first, self.second = (branch(inputs[0][0], inputs[0][0], dropout) for _ in range(2))

    def f(self, x, memory=0, mask=1):
        return self.first(x + memory) * mask

    def g(self, x, memory=1, mask=0):
        return self.second(x * memory + mask)


class Chained(OneFunction):
    def residual(self, x):
        return (x + self.inner(x)).tanh()


class FirstDual(Chained, DualResidualEntry):
    def __init__(self, inputs, **options):
        super().__init__(inputs, alpha=A, **options)


class NextDual(Chained, DualResidualStep):
    def __init__(self, inputs, **options):
        super().__init__(inputs, alpha=A, beta=B, **options)


class Noisy(Reversible):
    """No coupling, and only an inverse of its own; both evaluations of its default backward must draw the same."""

    streams = 1

    def __init__(self, inputs):
        super().__init__(inputs)
        self.log_scale = nn.Parameter(torch.zeros(inputs[0]))
        self.norm = nn.BatchNorm1d(inputs[0][0])

    def noise(self, x):
        return nn.functional.dropout(torch.ones_like(x), 0.3, self.training) + 1

    def forward(self, x):
        return x * self.log_scale.exp() * self.noise(x)

    def inverse(self, y):
        return y / self.log_scale.exp() / self.noise(y)


class Viewing(AdditiveCoupling):
    """F only views its input, so that gradients may share memory."""

    def residual(self, x):
        return x.flatten(1).unflatten(1, x.shape[1:])


def with_context(block_class, streams):
    return type(f"{block_class.__name__}WithContext", (block_class,), {"streams": streams})


BLOCKS = {
    one.__name__: one
    for one in (
        *(Additive, Affine, Momentum, TwoFunctions, Noisy, Viewing),
        *(FirstDual, NextDual),
        *(with_context(one, 3) for one in (Additive, Affine)),
        with_context(TwoFunctions, 4),
    )
}


def made(name, seed=0, batch=4):
    """Return a block in float64 with parameters away from where they begin, its inputs, and gradients of its outputs."""
    block_class = BLOCKS[name]
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    block = block_class([(FEATURES,)] * block_class.streams).double()
    with torch.no_grad():
        for parameter in block.parameters():
            if parameter.requires_grad:
                parameter.copy_(draw(*parameter.shape) / 2)
    streams = [draw(batch, FEATURES) for _ in range(block_class.streams)]
    if name == "TwoFunctionsWithContext":
        streams[-1] = (streams[-1] > 0).long()
    with fork_rng(seed, CPU), torch.no_grad(), frozen_statistics(block):
        outputs = block(*streams)
    return block, streams, outputs, [draw(*one.shape) for one in outputs]


@given(seed=st.integers(0, 2**32), batch=st.integers(2, 6))
@pytest.mark.parametrize("name", BLOCKS)
def test_it_is_inverted_and_its_gradients_and_statistics_are_plain_autograds(name, seed, batch):
    block, streams, outputs, gradients = made(name, seed, batch)
    plain = deepcopy(block)
    leaves = [leaf(one) for one in streams]
    with fork_rng(seed, CPU):
        pairs = [(one, dy) for one, dy in zip(plain(*leaves), gradients, strict=True) if one.requires_grad]
    torch.autograd.backward(*zip(*pairs, strict=True))
    with fork_rng(seed, CPU):
        found = block.reverse_vjp(outputs, given := tuple(one.clone() for one in gradients))
    assert all(map(torch.equal, given, gradients)), "another stream's was once added to them in place"
    for inputs, stream in zip(found.inputs, streams, strict=True):
        torch.testing.assert_close(inputs, stream, rtol=1e-10, atol=1e-10)
    for gradient, one in zip(found.gradients, leaves, strict=True):
        if one.requires_grad:
            torch.testing.assert_close(gradient, one.grad, rtol=1e-10, atol=1e-10)
    for own, other in zip(block.parameters(), plain.parameters(), strict=True):
        assert (own.grad is None) is (other.grad is None)
        if own.grad is not None:
            torch.testing.assert_close(own.grad, other.grad, rtol=1e-10, atol=1e-10)
    for own, other in zip(block.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", [name for name, one in BLOCKS.items() if hasattr(one, "functions")])
def test_its_backward_evaluates_each_function_once(name, monkeypatch):
    block, _, outputs, gradients = made(name)
    counts = Counter()
    for function in block.functions:
        original = getattr(block, function)

        def counted(*arguments, of=function, original=original):
            counts[of] += 1
            return original(*arguments)

        monkeypatch.setattr(block, function, counted)
    block.reverse_vjp(outputs, tuple(gradients))
    assert counts == dict.fromkeys(block.functions, 1)


def scale_and_shift(block, x):
    raw, shift = block.inner(x).chunk(2, 1)
    return torch.tanh(raw).exp(), shift


def momentum(block, x, v):
    velocity = 0.9 * v + 0.1 * block.inner(x)
    return x + velocity, velocity


def two(block, x1, x2):
    y1 = x1 + block.first(x2)
    return y1, x2 + block.second(y1)


FORMULAS = {
    "Additive": lambda b, x, t: (t + b.inner(x), x),
    "TwoFunctions": two,
    "Affine": lambda b, x, t: (t * scale_and_shift(b, x)[0] + scale_and_shift(b, x)[1], x),
    "Momentum": momentum,
    "FirstDual": lambda b, x: (b.residual(x) + (A - 1) * x, x),
    "NextDual": lambda b, x, before: (b.residual(x) + (A - 1) * x + B * before, x),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_formula(name):
    """Outside training no key is in force: it is a plain module, and its inverse undoes it."""
    block, streams, *_ = made(name)
    block.eval()
    outputs = block(*streams)
    for found, expected in zip(outputs, FORMULAS[name](block, *streams), strict=True):
        torch.testing.assert_close(found, expected)
    with torch.no_grad():
        for found, expected in zip(block.invert(*outputs), streams, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


class Careful(AdditiveCoupling):
    """F computes in float32 whatever autocast says."""

    def __init__(self):
        super().__init__(((16,),) * 2)
        self.weight = nn.Parameter(torch.randn(16, 16))

    def residual(self, x):
        with torch.autocast("cpu", enabled=False):
            return torch.tanh(x.float() @ self.weight)


def test_what_is_computed_in_float32_is_differentiated_in_float32():
    """A reversible backward runs inside the node's autocast, which once rounded the gradients of such blocks."""
    y, s, dy, ds = torch.randn(4, 8, 16)
    block = Careful()
    plain = block.reverse_vjp((y, s), (dy, ds))
    expected, block.weight.grad = block.weight.grad, None
    with torch.autocast("cpu", torch.bfloat16):
        found = block.reverse_vjp((y, s), (dy, ds))
    assert torch.equal(block.weight.grad, expected)
    assert torch.equal(found.gradients[0], plain.gradients[0])


class Shifted(nn.Module):
    """Its gradient with respect to `shift` is a view of that of its value where there is a single sample."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return x + self.shift[None]


@pytest.mark.parametrize("coupled", [True, False])
def test_a_step_on_a_single_sample_changes_no_gradient_that_goes_on(coupled):
    """A step changes gradients in place, while the stage before may still wait to read what was sent to it."""
    function, (y, s, dy, ds) = Shifted(), torch.randn(4, 1, 4)
    if coupled:
        sent = undo_sum(function, (y, s), (dy, ds), at=0, to=1).gradients
    else:
        sent = backpropagate((function((x := leaf(y)).unsqueeze(1).squeeze(1)) * 2,), (dy,), (x,))
    before = [one.clone() for one in sent]
    function.shift.grad.zero_()
    assert all(map(torch.equal, sent, before))

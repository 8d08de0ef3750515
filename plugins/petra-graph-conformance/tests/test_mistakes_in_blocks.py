"""Mistakes that authors of blocks make, and right blocks that look unusual: each is found by its promise, or by none."""

from __future__ import annotations

import pytest
import torch
from petra_graph_conformance import Trial
from petra_graph_conformance.blocks.block_trial import Tokens
from petra_graph_conformance.examined_promises import examine
from torch import nn
from torch.nn.utils import parametrizations

from petra_graph.blocks import Buffered, Reversed, Reversible, rng_scope
from petra_graph.planning import cpp_compiler
from tests.support.blocks import SHAPE, Scaled, Sound, Stem


class KeepsItsInput(Scaled):
    """Right for one micro-batch in flight."""

    def forward(self, x):
        self.kept = x
        return super().forward(x)

    def inverse(self, y):
        return (self.kept,)


class SetsTheGradient(Sound):
    """Right for one micro-batch in a window."""

    def reverse_vjp(self, outputs, gradients):
        for parameter in self.parameters():
            parameter.grad = None
        return super().reverse_vjp(outputs, gradients)


class ScaleOfTheFirstBatch(Stem):
    scale = None

    def forward(self, x):
        if self.scale is None:
            self.scale = x.detach().std()
        return (self.linear(x / self.scale),)


class MeanInAnAttribute(Stem):
    mean = 0.0

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return (self.linear(x if self.training else x - self.mean),)


class MaskDrawnOnce(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.mask = (torch.rand(inputs[0]) < 0.5).double()

    def residual(self, x):
        return super().residual(x * self.mask.to(x.dtype))


class ClampsItsWeights(Sound):
    """Only once they have grown: at first, the clamp changes nothing."""

    def residual(self, x):
        self.linear.weight.data.clamp_(-2, 2)
        return super().residual(x)


class InFloat32(Sound):
    def residual(self, x):
        return super().residual(x.float().to(x.dtype))


class _ForgetsATerm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * x * scale

    @staticmethod
    def backward(ctx, gradient):
        x, scale = ctx.saved_tensors
        return gradient * x * scale, gradient * x * x


class CustomBackward(Stem):
    def forward(self, x):
        return (_ForgetsATerm.apply(self.linear(x), self.linear.bias),)


class OffByALittle(Scaled):
    def inverse(self, y):
        return (y / self.log.exp() * (1 + 1e-4),)


class OffWhereItIsUsed(Scaled):
    """Its `inverse` is right, but the backward uses another one, and a part in float32 excuses it for more than rounding."""

    def forward(self, x):
        return (x * self.log.float().exp().to(x.dtype),)

    def inverse(self, y):
        return (y / self.log.float().exp().to(y.dtype),)

    def reverse_vjp(self, outputs, gradients):
        found = super().reverse_vjp(outputs, gradients)
        return Reversed(tuple(one * (1 + 1e-4) for one in found.inputs), found.gradients)


class TableOfFloat64(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.register_buffer("table", torch.linspace(0, 1, *inputs[0], dtype=torch.float64))

    def residual(self, x):
        return super().residual(x) * self.table.to(x.dtype)


class WeightOfFloat64(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.weight = nn.Parameter(torch.ones(inputs[0], dtype=torch.float64))

    def residual(self, x):
        return super().residual(x) * self.weight.to(x.dtype)


class DrawsInAnotherOrder(Reversible):
    streams = 2

    def forward(self, x, t):
        a, b = torch.rand_like(x), torch.rand_like(t)
        return x * (1 + a), t * (1 + b)

    def inverse(self, y, s):
        b, a = torch.rand_like(s), torch.rand_like(y)
        return y / (1 + a), s / (1 + b)


@pytest.mark.parametrize(
    ("block", "promise", "found", "remedy"),
    [
        (KeepsItsInput, "inverse", "is not x", "undo the steps of forward"),
        (SetsTheGradient, "gradients", "the parameters over 3 micro-batches", "it adds to `grad`"),
        (ScaleOfTheFirstBatch, "state dictionary", "gives other outputs in training", "persistent buffers"),
        (MeanInAnAttribute, "state dictionary", "gives other outputs in evaluation mode", "persistent buffers"),
        (MaskDrawnOnce, "state dictionary", "gives other outputs in training mode", "persistent buffers"),
        (ClampsItsWeights, "parameters", "linear.weight", "normalise a copy of them"),
        (CustomBackward, "derivative", "finite differences", "backward"),
        (TableOfFloat64, "types", "in float64 becomes float32: table", "name buffers in the block's `keep_dtype`"),
        (WeightOfFloat64, "types", "in float64 becomes float32: weight", "precision.compute"),
        (InFloat32, "precision", "rounds a stream to float32", "x.dtype"),
        (DrawsInAnotherOrder, "inverse", "is not x", "in the order in which forward draws them"),
        (OffByALittle, "inverse", "inverse(*forward(*x)) is not x: relative error 1.0e-04", "undo the steps"),
        (OffWhereItIsUsed, "inverse", "reverse_vjp reconstructs is not x: relative error 1.0e-04", "undo the steps"),
    ],
)
def test_a_mistake_is_found_by_its_promise(block, promise, found, remedy):
    outcomes = {one.promise: one for one in examine(Trial.of(block, [SHAPE] * block.streams)).outcomes}
    assert outcomes[promise].status in {"broken", "doubtful"}
    assert found in outcomes[promise].found
    assert remedy in outcomes[promise].remedy


class Sparse(Buffered):
    streams = 1

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.table = nn.Embedding(8, 3, sparse=True)

    def forward(self, tokens):
        return (self.table(tokens),)


class ComplexInside(Sound):
    def residual(self, x):
        return torch.fft.ifft(torch.fft.fft(super().residual(x)) * 1j).real


class Cayley(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        parametrizations.orthogonal(self.linear, orthogonal_map="cayley")


class BySvd(Sound):
    """A weight of singular values of its own."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.scale = nn.Parameter(torch.ones(inputs[0]))

    def residual(self, x):
        u, _, v = torch.linalg.svd(self.linear.weight)
        return torch.tanh(x @ (u * self.scale) @ v + self.linear.bias)


class ThreeStreams(Reversible):
    streams = 3

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(inputs[0][0], inputs[0][0])

    def forward(self, a, b, c):
        return b, c, a + self.linear(b * c).tanh()

    def inverse(self, b, c, y):
        return y - self.linear(b * c).tanh(), b, c


class StochasticDepth(Sound):
    def residual(self, x):
        y = super().residual(x)
        return y * (torch.rand(len(x), 1, device=x.device) < 0.5).to(x.dtype) * 2 if self.training else y


class FrozenInt8(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        drawn = torch.randint(-127, 128, (inputs[0][0], inputs[0][0]), dtype=torch.int8)
        self.whole = nn.Parameter(drawn, requires_grad=False)

    def residual(self, x):
        return super().residual(x @ (self.whole.to(x.dtype) / 127))


class Tied(Sound):
    def residual(self, x):
        return super().residual(x) @ self.linear.weight


class Vmapped(Sound):
    def residual(self, x):
        return torch.vmap(super().residual)(x)


class Hooked(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear.register_forward_hook(lambda _module, _inputs, output: 2 * output)
        self.linear.register_full_backward_hook(lambda *_: None)


class Compiled(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.compiled = torch.compile(super().residual, backend="aot_eager")

    def residual(self, x):
        return self.compiled(x)


class ByInductor(Sound):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.compiled = torch.compile(super().residual)

    def residual(self, x):
        return self.compiled(x)


class Relu(Sound):
    def residual(self, x):
        return super().residual(x).relu()


@pytest.mark.parametrize(
    "block",
    [ComplexInside, Cayley, BySvd, ThreeStreams, StochasticDepth, FrozenInt8, Tied, Vmapped, Hooked, Compiled, Relu],
)
def test_a_right_block_that_looks_unusual_is_accepted(block):
    report = examine(Trial.of(block, [SHAPE] * block.streams))
    assert {one.promise: one.found for one in report.outcomes if one.status in {"broken", "doubtful"}} == {}


# Types of all that a block is tried with take a minute to compile; these have what a training computes.
TRAINED = ["inverse", "gradients", "recomputation", "one evaluation", "state dictionary"]


@pytest.mark.slow
@pytest.mark.skipif(bool(cpp_compiler.lacking()), reason=f"lacks {cpp_compiler.lacking()}")
def test_a_block_that_inductor_compiles_is_accepted():
    report = examine(Trial.of(ByInductor, [SHAPE] * 2), only=TRAINED)
    torch.compiler.reset()
    assert [one.status for one in report.outcomes if one.promise in TRAINED] == ["kept"] * len(TRAINED), str(report)


def test_sparse_embeddings_are_accepted():
    report = examine(Trial.of(Sparse, [(5,)], draw=Tokens(8)))
    assert {one.promise: one.found for one in report.outcomes if one.status in {"broken", "doubtful"}} == {}


class MasksInAnotherOrder(Reversible):
    streams = 2

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def masked(self, part, x):
        return nn.functional.dropout(part(x), training=self.training)

    def forward(self, x, t):
        x = x + self.masked(self.first, t)
        return x, t + self.masked(self.second, x)

    def inverse(self, x, t):
        t = t - self.masked(self.second, x)
        return x - self.masked(self.first, t), t


class MasksByName(MasksInAnotherOrder):
    def masked(self, part, x):
        with rng_scope("first" if part is self.first else "second"):
            return super().masked(part, x)


def test_masks_in_another_order_are_told_from_another_function():
    report = examine(Trial.of(MasksInAnotherOrder, [(6,), (6,)]), only=["inverse"])
    [broken] = report.broken
    assert "because it draws other random numbers (in evaluation mode it is)" in broken.found
    assert "in the order in which forward draws them" in broken.remedy
    assert "rng_scope" in broken.remedy
    assert not examine(Trial.of(MasksByName, [(6,), (6,)])).broken

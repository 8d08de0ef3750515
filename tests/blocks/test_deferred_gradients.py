"""Gradients of parameters, left for later, are those of one backward to the bit, for graphs of any form."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from petra_graph.blocks import backpropagate, deferred_gradients, leaf

WIDTH = 6


class Case(nn.Module):
    """A module with a function of its own."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        found = self.function(self, *inputs)
        return found if isinstance(found, tuple) else (found,)


def parameter(*shape):
    return nn.Parameter(torch.randn(*shape))


def linear(outputs=WIDTH):
    return nn.Linear(WIDTH, outputs)


def vectors(count=1):
    return tuple(torch.randn(5, WIDTH) for _ in range(count))


def images():
    return (torch.randn(3, 4, 8, 8),)


def words():
    return (torch.randn(2, 7, WIDTH),)


def sequential(*parts):
    return Case(lambda self, x: self.inner(x), inner=nn.Sequential(*parts))


class Scale(Function):
    """A node of torch.autograd.Function that reads a parameter."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum_to_size(weight.shape)


class Twice(Function):
    """A node of torch.autograd.Function that reads none."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def in_float32(self, x):
    with torch.autocast("cpu", enabled=False):
        return (x @ self.w).tanh() @ self.v


def attention(self, x):
    return self.inner(self.norm(x), self.norm2(x), x, need_weights=False)[0]


def cut_in_place(self, x):
    y = self.inner(x)
    y[:, :2].mul_(self.weight)
    return y.relu_() + self.bias


CASES = {
    "linear": lambda: (sequential(linear(), nn.Tanh(), linear(3)), vectors()),
    "linear on words": lambda: (sequential(nn.LayerNorm(WIDTH), linear(9), nn.GELU(), nn.Linear(9, WIDTH)), words()),
    "conv, batch norm": lambda: (
        sequential(
            nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True),
            nn.Conv2d(6, 4, 3, stride=2, bias=False), nn.GroupNorm(2, 4), nn.Dropout(0.3), nn.InstanceNorm2d(4, affine=True),
        ),
        images(),
    ),
    "grouped and transposed": lambda: (
        sequential(nn.Conv2d(4, 8, 3, groups=4), nn.SiLU(), nn.ConvTranspose2d(8, 4, 2, stride=2), nn.PReLU(4)), images()
    ),
    "rms norm": lambda: (sequential(nn.RMSNorm(WIDTH), linear()), words()),
    "attention": lambda: (
        Case(attention, inner=nn.MultiheadAttention(WIDTH, 2, batch_first=True), norm=nn.LayerNorm(WIDTH), norm2=linear()),
        words(),
    ),
    "self-attention": lambda: (
        Case(lambda self, x: self.inner(x, x, x)[0], inner=nn.MultiheadAttention(WIDTH, 2, batch_first=True)), words()
    ),
    "transformer layer": lambda: (sequential(nn.TransformerEncoderLayer(WIDTH, 2, 12, batch_first=True)), words()),
    "lstm": lambda: (Case(lambda self, x: self.inner(x)[0], inner=nn.LSTM(WIDTH, 4, 2, batch_first=True)), words()),
    "gru cell, three steps": lambda: (
        Case(lambda self, x: self.inner(x, self.inner(x, self.inner(x, x))), inner=nn.GRUCell(WIDTH, WIDTH)), vectors()
    ),
    "a layer three times": lambda: (Case(lambda self, x: self.a(self.a(self.a(x).tanh()).tanh()), a=linear()), vectors()),
    "a weight twice": lambda: (Case(lambda self, x: (x * self.w).tanh() * self.w, w=parameter(WIDTH)), vectors()),
    "a weight by three ways": lambda: (
        Case(lambda self, x: (((x * self.w).tanh() @ self.w.outer(self.w)).tanh() + self.w) * self.w, w=parameter(WIDTH)),
        vectors(),
    ),
    "a node with a weight twice": lambda: (Case(lambda self, x: x * (self.w * self.w), w=parameter(WIDTH)), vectors()),
    "tied": lambda: (Case(lambda self, x: functional.linear(x @ self.w, self.w).tanh(), w=parameter(WIDTH, WIDTH)), vectors()),
    "weight norm": lambda: (sequential(parametrizations.weight_norm(linear()), nn.Tanh(), linear()), vectors()),
    "spectral norm": lambda: (sequential(parametrizations.spectral_norm(linear()), nn.Tanh()), vectors()),
    "several outputs": lambda: (
        Case(lambda self, x: (self.a(x), self.b(x).sin(), self.w * 1.0, self.w), a=linear(), b=linear(3), w=parameter(WIDTH)),
        vectors(),
    ),
    "parts of an output": lambda: (Case(lambda self, x: self.a(x).chunk(3, 1)[1] * self.w, a=linear(), w=parameter(2)), vectors()),
    "an unused part": lambda: (Case(lambda self, x: (self.a(x).max(1)[0]), a=linear()), vectors()),
    "two inputs": lambda: (Case(lambda self, x, t: (self.a(x) + t, self.b(x * t) * self.w), a=linear(), b=linear(), w=parameter(1)), vectors(2)),
    "an unused input": lambda: (Case(lambda self, x, t: self.a(x), a=linear(), b=linear()), vectors(2)),
    "the input itself": lambda: (Case(lambda self, x, t: (x, self.a(t), t), a=linear()), vectors(2)),
    "no input": lambda: (Case(lambda self, x: self.a(x.detach()), a=linear()), vectors()),
    "no parameter": lambda: (Case(lambda self, x: x.sin()), vectors()),
    "nothing": lambda: (Case(lambda self, x: x.detach()), vectors()),
    "a sum of parameters": lambda: (Case(lambda self, x: x + self.v * self.w, v=parameter(WIDTH), w=parameter(WIDTH)), vectors()),
    "the gradient passed on": lambda: (Case(lambda self, x: (x.unflatten(1, (2, 3)) + self.w).relu().flatten(1) + self.v, v=parameter(WIDTH), w=parameter(2, 3)), vectors()),
    "in float32": lambda: (Case(in_float32, v=parameter(WIDTH, WIDTH), w=parameter(WIDTH, WIDTH)), vectors()),
    "frozen": lambda: (sequential(linear().requires_grad_(False), nn.Tanh(), linear()), vectors()),
    "in place": lambda: (Case(cut_in_place, inner=linear(), weight=parameter(2), bias=parameter(WIDTH)), vectors()),
    "tokens": lambda: (
        sequential(nn.Embedding(11, WIDTH), nn.LayerNorm(WIDTH), linear()), (torch.randint(11, (4, 9)),)
    ),
    "sparse tokens": lambda: (sequential(nn.Embedding(11, WIDTH, sparse=True)), (torch.randint(11, (4, 9)),)),
    "tokens beside a stream": lambda: (
        Case(lambda self, t, x: self.a(x + self.e(t)), a=linear(), e=nn.Embedding(11, WIDTH)),
        (torch.randint(11, (5,)), *vectors()),
    ),
    "a function of one's own": lambda: (
        Case(lambda self, x: Scale.apply(self.a(x), self.w).tanh(), a=linear(), w=parameter(WIDTH)), vectors()
    ),
    "a function without parameters": lambda: (Case(lambda self, x: self.b(Twice.apply(self.a(x))), a=linear(), b=linear()), vectors()),
    "a function beyond a branch": lambda: (
        Case(lambda self, x: x * Twice.apply(self.w) + Scale.apply(self.v, self.u), u=parameter(WIDTH), v=parameter(WIDTH), w=parameter(WIDTH)),
        vectors(),
    ),
    "a checkpoint": lambda: (
        Case(lambda self, x: self.b(checkpoint(self.a, x, use_reentrant=False).tanh()), a=nn.Sequential(linear(), nn.Dropout(0.4), nn.Tanh()), b=linear()),
        vectors(),
    ),
}  # fmt: skip


def passed(module, inputs, gradients, *, deferred, dtype=None, autocast=False):
    """Return the gradients of inputs, and of parameters before and after they are asked for."""
    torch.manual_seed(1)
    leaves = tuple(map(leaf, inputs))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        outputs = module(*leaves)
        chosen = [gradient.to(output.dtype) for gradient, output in zip(gradients, outputs, strict=True)]
        if not deferred:
            return backpropagate(outputs, chosen, leaves), None, grads(module)
        with deferred_gradients() as waiting:
            found = backpropagate(outputs, chosen, leaves)
        between = grads(module)
        kept = [one.clone() for one in found]
        for one in found:
            if one.numel():
                one.zero_()  # couplings add to it in place
        del outputs
        waiting.accumulate()
    return kept, between, grads(module)


def grads(module):
    return {name: None if one.grad is None else one.grad.clone() for name, one in module.named_parameters()}


def same(one, other):
    if one is None or other is None:
        return one is other
    return torch.equal(one.to_dense(), other.to_dense())


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_they_are_those_of_one_backward(name, dtype, before, autocast):
    torch.manual_seed(0)
    module, inputs = CASES[name]()
    module = module.to(dtype)
    inputs = [one.to(dtype) if one.is_floating_point() else one for one in inputs]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        gradients = [torch.randn_like(one) for one in copy.deepcopy(module)(*inputs)]
    if before and "sparse" not in name:
        for one in module.parameters():
            one.grad = torch.randn_like(one)
    other = copy.deepcopy(module)
    for one, of_other in zip(module.parameters(), other.parameters(), strict=True):
        of_other.grad = None if one.grad is None else one.grad.clone()
    start = grads(module)
    expected, _, of_whole = passed(module, inputs, gradients, deferred=False, autocast=autocast)
    found, between, of_parts = passed(other, inputs, gradients, deferred=True, autocast=autocast)
    assert all(same(*pair) for pair in zip(found, expected, strict=True) if pair[1].numel())
    assert all(same(between[key], start[key]) for key in start)
    assert {key: same(of_parts[key], of_whole[key]) for key in of_whole} == dict.fromkeys(of_whole, True)


def test_w_differentiates_no_node_of_another_part():
    """The gradient of a layer's input is computed once, and its parameters' once."""
    a, b = linear(), linear()
    (x,) = vectors()
    leaves = (leaf(x),)
    y = b(a(*leaves).tanh())
    with deferred_gradients() as deferred:
        backpropagate([y], [torch.ones_like(y)], leaves)
    operations = []

    class Noted(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            operations.append(str(func))
            return func(*args, **(kwargs or {}))

    with Noted():
        deferred.accumulate()
    assert not any("tanh" in one for one in operations)
    assert sum("mm" in one for one in operations) == 2


def test_hooks_of_parameters_are_called_once_and_in_w():
    a = linear()
    (x,) = vectors()
    leaves, calls = (leaf(x),), []
    a.weight.register_hook(lambda _: calls.append("tensor"))
    a.weight.register_post_accumulate_grad_hook(lambda _: calls.append("accumulated"))
    y = a(*leaves)
    with deferred_gradients() as deferred:
        backpropagate([y], [torch.ones_like(y)], leaves)
    assert not calls
    deferred.accumulate()
    assert calls == ["tensor", "accumulated"]


def test_the_first_gradient_of_a_window_is_not_copied():
    """It becomes `grad` itself, as in one backward."""
    a = nn.Conv2d(4, 4, 3)
    (x,) = images()
    leaves = (leaf(x),)
    y = a(*leaves)
    with deferred_gradients() as deferred:
        backpropagate([y], [torch.ones_like(y)], leaves)
    copies = []

    class Noted(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            copies.extend([str(func)] * ("clone" in str(func) or "copy" in str(func)))
            return func(*args, **(kwargs or {}))

    with Noted():
        deferred.accumulate()
    assert not copies


def test_a_reentrant_checkpoint_says_that_it_has_no_gradient_of_inputs_alone():
    a = linear()
    (x,) = vectors()
    leaves = (leaf(x),)
    y = checkpoint(a, *leaves, use_reentrant=True)
    with deferred_gradients(), pytest.raises(RuntimeError, match="use_reentrant=True"):
        backpropagate([y], [torch.ones_like(y)], leaves)


@pytest.mark.parametrize("behind", [False, True])
def test_a_compiled_part(behind):
    """It can be differentiated once: its parameters' gradients come with the input's, and wait."""
    inner, (x, gradient) = nn.Sequential(linear(), nn.Tanh(), linear()), vectors(2)
    module = Case(lambda self, x: self.last(self.inner(x)) if behind else self.inner(x), inner=inner, last=linear())
    other = copy.deepcopy(module)
    for one in (module, other):
        one.inner = torch.compile(one.inner, backend="aot_eager")
    expected, _, of_whole = passed(module, [x], [gradient], deferred=False)
    found, between, of_parts = passed(other, [x], [gradient], deferred=True)
    assert all(value is None for value in between.values())
    assert same(found[0], expected[0])
    assert all(same(of_parts[key], of_whole[key]) for key in of_whole)

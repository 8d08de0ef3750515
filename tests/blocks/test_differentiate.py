"""One vector-Jacobian product, as every backward takes it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from petra_graph.blocks import AdditiveCoupling, TwoFunctionCoupling, backpropagate, leaf

SIZE = 16


class Careful(AdditiveCoupling):
    """F computes in float32 whatever autocast says."""

    def __init__(self) -> None:
        super().__init__(((SIZE,), (SIZE,)))
        self.weight = nn.Parameter(torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0)))

    def residual(self, x):
        with torch.autocast("cpu", enabled=False):
            return torch.tanh(x.float() @ self.weight)


class Viewing(AdditiveCoupling):
    """F only views its input, so its gradient is a view of the one that comes in."""

    def residual(self, x):
        return x.flatten(1).unflatten(1, x.shape[1:])


class ViewingTwice(TwoFunctionCoupling):
    def f(self, x):
        return x.flatten(1).unflatten(1, x.shape[1:])

    g = f


def streams(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, SIZE, generator=generator) for _ in range(count)]


def test_what_is_computed_in_float32_is_differentiated_in_float32():
    """A reversible backward runs inside the node's autocast, which once rounded the gradients of such blocks."""
    y, s, dy, ds = streams(4)
    block = Careful()
    plain = block.reverse_vjp((y, s), (dy, ds))
    expected, block.weight.grad = block.weight.grad, None
    with torch.autocast("cpu", torch.bfloat16):
        found = block.reverse_vjp((y, s), (dy, ds))
    assert torch.equal(block.weight.grad, expected)
    assert torch.equal(found.gradients[0], plain.gradients[0])


@pytest.mark.parametrize("block", [Viewing, ViewingTwice])
def test_a_residual_function_that_only_views_leaves_the_gradients_alone(block):
    """Its input gradient was the incoming one itself, to which the other stream's was then added in place."""
    x, t, dy, ds = streams(4)
    made = block(((SIZE,), (SIZE,)))
    leaves = leaf(x), leaf(t)
    expected = backpropagate(made(*leaves), (dy, ds), leaves)
    given = dy.clone(), ds.clone()
    found = made.reverse_vjp(tuple(stream.detach() for stream in made(x, t)), given)
    for one, other in zip(found.gradients, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.equal(given[0], dy)
    assert torch.equal(given[1], ds)


def test_an_input_that_nothing_depends_on_has_gradient_zero():
    x = leaf(torch.ones(2))
    assert torch.equal(backpropagate([torch.ones(2)], [torch.ones(2)], [x])[0], torch.zeros(2))

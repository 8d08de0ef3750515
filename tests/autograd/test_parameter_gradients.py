"""A backward differentiates with the module's own parameters, as plain autograd does."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from petra_graph.autograd import reversible
from petra_graph.blocks import AdditiveCoupling, NoOptions
from tests.support.sequences import FEATURES, branch, expect_plain, inputs, sequence


def both(made, *arguments):
    """Return `grad` of all parameters, found by reconstruction and by plain autograd."""
    found = []
    for keep in (0, len(made)):
        made.keep_graphs = keep
        made.zero_grad()
        made(*arguments).square().sum().backward()
        found.append([one.grad for one in made.parameters()])
    return zip(*found, strict=True)


@pytest.mark.parametrize("depth", [1, 3])
def test_a_hook_of_a_parameter_runs_once_and_may_change_the_gradient(depth):
    made = sequence(depth=depth, dropout=0.0)
    made.append(reversible([Outer(branch(dropout=0.0))])[0].double())  # a sequence within a function
    calls = []
    for parameter in made.parameters():
        parameter.register_hook(lambda gradient, one=parameter: (calls.append(("tensor", id(one))), gradient * 3)[1])
        parameter.register_post_accumulate_grad_hook(lambda one: calls.append(("accumulated", id(one))))
    for found, expected in both(made, inputs()):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    every = [(kind, id(one)) for one in made.parameters() for kind in ("tensor", "accumulated")]
    assert sorted(calls) == sorted(every * 2)


class Outer(nn.Module):
    def __init__(self, *functions):
        super().__init__()
        self.inner = reversible(functions)

    def forward(self, x):
        return self.inner(x) - x


def test_a_hook_that_is_taken_away_is_gone():
    made, calls = sequence(dropout=0.0), []
    handle = made[0].function[0].weight.register_hook(calls.append)
    output = made(inputs()).sum()
    output.backward(retain_graph=True)
    handle.remove()
    output.backward()
    assert len(calls) == 1


def test_a_forward_in_a_hook_of_a_function_trains_the_modules_parameters():
    """It read what stood in their place, and its gradient was lost."""
    made, x = sequence(depth=2, dropout=0.0).eval(), inputs()
    again = []

    def call(*_):
        if not again:
            with torch.enable_grad():
                again.append(made(x.detach()).sum())

    handle = made[1].function[0].register_full_backward_hook(call)
    made(x).sum().backward()
    handle.remove()
    made.zero_grad()
    again[0].backward()
    found = [one.grad for one in made.parameters()]
    made.zero_grad()
    made(x.detach()).sum().backward()
    for one, parameter in zip(found, made.parameters(), strict=True):
        assert torch.equal(one, parameter.grad)


class RefersTo(nn.Module):
    def __init__(self, read):
        super().__init__()
        self.linear = nn.Linear(FEATURES, FEATURES)
        self.read = read

    def forward(self, x):
        return self.linear(x) * self.read()


def test_a_leaf_that_a_function_only_refers_to_gets_its_gradient():
    scale = torch.full((FEATURES,), 1.5, dtype=torch.float64, requires_grad=True)
    calls, found = [], []
    scale.register_hook(calls.append)
    made = reversible([RefersTo(lambda: scale) for _ in range(2)]).double()
    for _ in both(made, inputs()):
        pass
    found, scale.grad = [scale.grad], None
    made(inputs()).square().sum().backward()
    torch.testing.assert_close(found[0], 2 * scale.grad, rtol=1e-11, atol=1e-11)
    assert len(calls) == 4  # once a block, once in plain autograd, and once more in it


def test_what_a_tensor_was_computed_from_that_a_function_only_refers_to_gets_its_gradient():
    base = torch.full((FEATURES,), 0.5, dtype=torch.float64, requires_grad=True)
    found = []
    for keep in (0, 2):
        scale, base.grad = base.exp(), None
        made = reversible([RefersTo(lambda scale=scale: scale)] * 2, keep_graphs=keep).double()
        nn.init.eye_(made[0].function.linear.weight)
        nn.init.zeros_(made[0].function.linear.bias)
        made(inputs()).square().sum().backward()
        found.append(base.grad)
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-11)


def test_parameters_frozen_or_thawed_after_the_forward_get_nothing():
    made = sequence(depth=2, dropout=0.0)
    thawed, frozen = made[0].function[0].weight.requires_grad_(requires_grad=False), made[1].function[0].weight
    loss = made(inputs()).sum()
    thawed.requires_grad_()
    frozen.requires_grad_(requires_grad=False)
    loss.backward()
    assert thawed.grad is frozen.grad is None
    assert made[0].function[4].weight.grad is not None


class Shifts(nn.Module):
    """The gradient of the shift is a view of the output's."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4 * FEATURES))

    def forward(self, x):
        return (x.flatten() + self.shift).view_as(x)


def test_a_hook_may_change_a_gradient_in_place():
    """As an optimizer in the backward does: the blocks below read the same memory."""
    made, x = reversible([Shifts() for _ in range(3)]).double(), inputs()
    (expected,) = torch.autograd.grad(made(x).square().sum(), x)

    def clear(one):
        one.grad.zero_()

    for one in made.parameters():
        one.register_post_accumulate_grad_hook(clear)
    made(x).square().sum().backward()
    assert torch.equal(x.grad, expected)


def test_a_reentrant_checkpoint_in_a_function_is_refused():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.function = branch(dropout=0.0)

        def forward(self, x):
            return checkpoint(self.function, x, use_reentrant=True)

    loss = reversible([Checkpointed() for _ in range(2)]).double()(inputs()).sum()
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        loss.backward()


class ByHand(AdditiveCoupling):
    """A block whose author adds to `grad`, as the page of blocks allows."""

    def __init__(self):
        super().__init__(((FEATURES,), (FEATURES,)), NoOptions())
        self.weight = nn.Parameter(torch.ones(FEATURES))

    def residual(self, x):
        return x * self.weight

    def reverse_vjp(self, outputs, gradients):
        before = self.weight.grad
        reverse = super().reverse_vjp(outputs, gradients)
        assert self.weight.grad is not before
        return reverse


@pytest.mark.parametrize("nested", [False, True])
def test_a_block_may_add_to_grad_itself(nested):
    made = reversible([branch(), ByHand(), branch()])
    expect_plain((reversible([Outer(*made), branch()]) if nested else made).double(), inputs())


def test_instance_normalisation_counts_each_forward_once():
    """Its buffers, which the recomputation hides, were put back before it ran."""
    functions = [nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True), nn.Conv1d(4, 4, 1)) for _ in range(2)]
    expect_plain(reversible(functions).double(), torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True))

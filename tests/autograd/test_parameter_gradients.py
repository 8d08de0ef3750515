"""A backward differentiates with the module's own parameters, as plain autograd does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from petra_graph.autograd import reversible
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


def test_instance_normalisation_counts_each_forward_once():
    """Its buffers, which the recomputation hides, were put back before it ran."""
    functions = [nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True), nn.Conv1d(4, 4, 1)) for _ in range(2)]
    expect_plain(reversible(functions).double(), torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True))

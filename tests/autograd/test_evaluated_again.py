"""A sequence that runs without a graph, and again with one, draws the same numbers: it trained on other masks than its forward's."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from petra_graph.autograd import reversible
from petra_graph.blocks import AdditiveCoupling
from petra_graph.blocks.randomness import fork_rng

FEATURES = 6


def branch(dropout=0.5):
    return nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Dropout(dropout))


class Inner(nn.Module):
    """A residual function that is a reversible network itself."""

    def __init__(self, **settings):
        super().__init__()
        self.inner = reversible([branch() for _ in range(2)], **settings)

    def forward(self, x):
        return self.inner(x) - x


def nested(**settings):
    return reversible([Inner(**settings) for _ in range(2)])


def listed(**settings):
    """Sequences stand among functions as they are."""
    return reversible([reversible([branch() for _ in range(2)], **settings) for _ in range(2)])


class Reentrant(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.inner = reversible([branch() for _ in range(3)], **settings)

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=True)


@pytest.mark.parametrize(
    "network",
    [
        nested(),
        nested(keep_graphs=1),
        listed(),
        Reentrant(),
        Reentrant(keep_graphs=3),
    ],
    ids=["nested", "nested-kept", "listed", "reentrant", "reentrant-kept"],
)
def test_the_gradient_is_that_of_the_forward(network):
    network.double()
    x, direction = torch.randn(2, 4, FEATURES, dtype=torch.float64)

    def loss(at):
        torch.manual_seed(5)
        return network(at.detach().requires_grad_()).square().sum()

    given = x.clone().requires_grad_()
    torch.manual_seed(5)
    network(given).square().sum().backward()
    slope = (loss(x + 1e-6 * direction) - loss(x - 1e-6 * direction)) / 2e-6
    torch.testing.assert_close((given.grad * direction).sum(), slope, rtol=1e-6, atol=1e-6)


class Node(AdditiveCoupling):
    """A node of a stage."""

    def __init__(self):
        super().__init__(((FEATURES,), (FEATURES,)))
        self.function = Inner()

    def residual(self, x):
        return self.function(x)


def test_a_node_of_a_stage_reconstructs_its_input():
    node = Node().double()
    inputs = tuple(torch.randn(2, 4, FEATURES, dtype=torch.float64))

    def key() -> AbstractContextManager[None]:
        return fork_rng(11, torch.device("cpu"))

    with torch.no_grad(), key():
        outputs = node(*inputs)
    with key():
        found = node.reverse_vjp(outputs, tuple(torch.ones_like(one) for one in outputs))
    for one, other in zip(found.inputs, inputs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("training", [False, True])
def test_an_evaluation_draws_nothing(training):
    """So that it does not change the training beside it."""
    network = reversible([branch()]).train(training)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with torch.no_grad() if not training else nullcontext():
        network(torch.zeros(2, FEATURES))
    assert torch.equal(torch.get_rng_state(), before) is not training

"""A parameter belongs to one node."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from petra_graph.blocks import AdditiveCoupling
from petra_graph.errors import Problem
from petra_graph.measure.node_shapes import measure_shapes
from petra_graph.planning.shared_across_stages import shared_parameter_problems

SHARED = nn.Parameter(torch.zeros(6))


class Coupled(AdditiveCoupling):
    """A coupling by a scale."""

    def __init__(self, inputs, options) -> None:
        super().__init__(inputs, options)
        self.own = nn.Linear(6, 6)
        self.scale = self.parameter()

    def parameter(self) -> nn.Parameter:
        return nn.Parameter(torch.zeros(6))

    def residual(self, x):
        return self.own(x) * self.scale


class Tied(Coupled):
    def parameter(self) -> nn.Parameter:
        return SHARED


class TiedByMemory(Coupled):
    def parameter(self) -> nn.Parameter:
        return nn.Parameter(SHARED.data)


class TiedWithin(Coupled):
    def residual(self, x):
        self.again = self.own
        return self.again(self.own(x))


def problems(graph) -> list[Problem]:
    return list(shared_parameter_problems(graph, measure_shapes(graph, (8,), torch.float32)))


@pytest.mark.parametrize("block", [Tied, TiedByMemory])
def test_a_parameter_of_two_nodes_is_refused(made, block):
    """Each stage stepped its own copy, or the same values twice: nothing was defined, and nothing said so."""
    assert problems(made(block, nodes=("one", "other"))) == [
        Problem(
            message='nodes "one" and "other" share a parameter ("scale" and "scale"): a parameter belongs to one node',
            hint="write both uses into one block, or give each node a parameter of its own",
            path=("graph", "node", 2),
        )
    ]


@pytest.mark.parametrize("block", [Coupled, TiedWithin])
def test_nodes_with_parameters_of_their_own(made, block):
    assert problems(made(block, nodes=("one", "other"))) == []


def test_nothing_is_drawn(made):
    graph = made(Coupled, nodes=("one", "other"))
    shapes = measure_shapes(graph, (8,), torch.float32)
    before = torch.get_rng_state()
    list(shared_parameter_problems(graph, shapes))
    assert torch.equal(torch.get_rng_state(), before)

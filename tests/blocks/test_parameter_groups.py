"""Which parameters have no weight decay, and which are tables."""

from __future__ import annotations

import pytest
import torch
from attrs import frozen
from torch import nn

from petra_graph.blocks import Buffered
from petra_graph.blocks.block_kinds import parameter_groups
from tests.support.pipelines import REVNET, pipeline


@frozen(kw_only=True)
class Split:
    decayed: set[str]
    undecayed: set[str]


def split(*modules: nn.Module) -> Split:
    groups = parameter_groups(modules)
    names = {id(p): name for module in modules for name, p in module.named_parameters()}
    return Split(decayed={names[id(p)] for p in groups.decayed}, undecayed={names[id(p)] for p in groups.undecayed})


def test_normalisation_and_biases_are_undecayed():
    block = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.LayerNorm(2), nn.RMSNorm(2), nn.Linear(2, 2))
    assert split(block) == Split(
        decayed={"0.weight", "4.weight"},
        undecayed={"0.bias", "1.weight", "1.bias", "2.weight", "2.bias", "3.weight", "4.bias"},
    )


class NormFreeConv(nn.Conv2d):
    pass


class Standardised(nn.BatchNorm2d):
    pass


class WeightNorm(nn.Linear):
    pass


class LayerNorm2d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))


@pytest.mark.parametrize(
    ("module", "decays"),
    [
        (NormFreeConv(1, 2, 3), True),
        (WeightNorm(2, 2), True),
        (nn.LSTM(2, 2), True),
        (Standardised(2), False),
        (LayerNorm2d(), False),
        (nn.InstanceNorm1d(2, affine=True), False),
        (nn.GroupNorm(1, 2), False),
        (nn.SyncBatchNorm(2), False),
    ],
    ids=lambda case: type(case).__name__,
)
def test_normalisations_are_recognised_by_their_class(module, decays):
    """A convolution lost its decay because of its name."""
    assert bool(split(module).decayed) is decays


def test_every_parameter_is_in_one_group_once():
    built = pipeline(REVNET, (3, 6, 6))
    for executor in built.executors:
        groups = parameter_groups(executor.modules.values())
        found = [id(p) for p in (*groups.decayed, *groups.undecayed)]
        assert sorted(found) == sorted({id(p) for m in executor.modules.values() for p in m.parameters()})


class Scaled(nn.Module):
    """A block's own scale, and a token in a list."""

    undecayed = ("scale", "tokens.*")

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.scales = nn.Parameter(torch.ones(2))
        self.tokens = nn.ParameterList([torch.ones(2), torch.ones(2)])


def test_a_block_says_what_else_is_undecayed():
    assert split(Scaled()) == Split(decayed={"scales"}, undecayed={"scale", "tokens.0", "tokens.1"})
    assert split(nn.Sequential(Scaled())).undecayed == set()  # the block says it, not a layer of it


class Positioned(Buffered):
    """Tables of each kind, beside a matrix."""

    tables = ("positions",)

    def __init__(self) -> None:
        super().__init__(((2,),))
        self.linear = nn.Linear(2, 2)
        self.tokens = nn.Embedding(3, 2)
        self.bags = nn.EmbeddingBag(3, 2)
        self.positions = nn.Parameter(torch.ones(4, 2))
        self.gain = nn.Parameter(torch.ones(2))


def test_an_embedding_that_a_layer_shares_is_a_table():
    """The layer comes first, so that the embedding's own place is passed over."""
    block = Positioned()
    block.linear.weight = block.tokens.weight
    assert parameter_groups([block]).hidden_matrices() == []


class Tied(Buffered):
    """One matrix used by two layers."""

    def __init__(self) -> None:
        super().__init__(((2,),))
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight

    def forward(self, x):
        return (self.second(self.first(x)),)


def test_a_parameter_that_two_layers_share_is_stepped_once():
    """Listed twice, it made torch warn, and every step counted twice."""
    tied = Tied()
    groups = parameter_groups([tied])
    assert [id(p) for p in groups.decayed] == [id(tied.first.weight)]
    tied.undecayed = ("second.weight",)
    assert tied.first.weight in set(parameter_groups([tied]).undecayed)
    assert len(groups.undecayed) == 2
    torch.optim.SGD([{"params": list(groups.decayed)}, {"params": list(groups.undecayed)}], lr=0.1)

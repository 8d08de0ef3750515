"""Which parameters have no weight decay, and which are tables."""

import torch
from torch import nn

from petra_graph.blocks import Buffered
from petra_graph.blocks.block_kinds import parameter_groups


def split(*modules: nn.Module) -> tuple[set[str], set[str]]:
    """Return the names of decayed and of undecayed parameters."""
    groups = parameter_groups(modules)
    names = {id(p): name for module in modules for name, p in module.named_parameters()}
    return {names[id(p)] for p in groups.decayed}, {names[id(p)] for p in groups.undecayed}


def test_normalisation_and_biases_are_undecayed():
    block = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.LayerNorm(2), nn.RMSNorm(2), nn.Linear(2, 2))
    undecayed = {"0.bias", "1.weight", "1.bias", "2.weight", "2.bias", "3.weight", "4.bias"}
    assert split(block) == ({"0.weight", "4.weight"}, undecayed)


class Scaled(nn.Module):
    """A block's own scale, and a token in a list."""

    undecayed = ("scale", "tokens.*")

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.scales = nn.Parameter(torch.ones(2))
        self.tokens = nn.ParameterList([torch.ones(2), torch.ones(2)])


def test_a_block_says_what_else_is_undecayed():
    assert split(Scaled()) == ({"scales"}, {"scale", "tokens.0", "tokens.1"})
    assert split(nn.Sequential(Scaled()))[1] == set()  # the block says it, not a layer of it


class Tied(Buffered):
    """One matrix used by two layers."""

    def __init__(self) -> None:
        super().__init__(((2,),))
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.second.weight = self.first.weight


def test_a_parameter_that_two_layers_share_is_stepped_once():
    """Listed twice, it made torch warn, and every step counted twice."""
    tied = Tied()
    groups = parameter_groups([tied])
    assert [id(p) for p in groups.decayed] == [id(tied.first.weight)]
    tied.undecayed = ("second.weight",)
    assert tied.first.weight in set(parameter_groups([tied]).undecayed)
    assert len(groups.undecayed) == 2
    torch.optim.SGD([{"params": list(groups.decayed)}, {"params": list(groups.undecayed)}], lr=0.1)


class Positioned(Buffered):
    """Tables of each kind, beside a matrix that is one of them: the layer comes first, so that the embedding's own place is passed over."""

    tables = ("positions",)

    def __init__(self) -> None:
        super().__init__(((2,),))
        self.linear, self.tokens, self.bags = nn.Linear(2, 2), nn.Embedding(2, 2), nn.EmbeddingBag(3, 2)
        self.positions = nn.Parameter(torch.ones(4, 2))
        self.linear.weight = self.tokens.weight


def test_tables_are_no_hidden_matrices():
    assert parameter_groups([Positioned()]).hidden_matrices() == []

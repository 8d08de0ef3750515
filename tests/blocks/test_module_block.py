"""Any nn.Module as a block: seeded by the node, or refused with what to do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from petra_graph.blocks.module_block import block_of
from petra_graph.blocks.randomness import fork_rng, may_draw
from tests.networks import own_modules

LINEAR = {"in_features": 2, "out_features": 2}


def built(make, options, key=1):
    with fork_rng(key, torch.device("cpu")):
        return block_of(make)([(2,)], **options)


def test_parameters_follow_from_the_key_of_the_node():
    weights = [built(nn.Linear, LINEAR, key).module.weight for key in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_what_is_no_module_and_no_stream():
    with pytest.raises(TypeError, match=r"own_modules:number returned int, and no torch.nn.Module"):
        built(own_modules.number, {})
    lstm = built(nn.LSTM, {"input_size": 2, "hidden_size": 3, "batch_first": True})
    with pytest.raises(TypeError, match=r"LSTM returned Tensor, tuple(.|\n)*self.lstm\(x\)\[0\]"):
        lstm(torch.zeros(1, 4, 2))


@pytest.mark.parametrize(
    ("make", "options", "draws"),
    [
        (nn.Linear, LINEAR, False),
        (nn.Dropout, {"p": 0.1}, True),
        (own_modules.Halves, {"in_features": 2, "out_features": 8}, True),
    ],
)
def test_modules_that_may_draw_are_given_seeds(make, options, draws):
    assert may_draw(built(make, options)) == draws

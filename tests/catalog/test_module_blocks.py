"""Any nn.Module as a block: seeded by the node, or refused with what to do."""

from __future__ import annotations

import pytest
import torch

from petra_graph.blocks.randomness import fork_rng, may_draw
from petra_graph.catalog.networks.module_blocks import Module
from petra_graph.errors import SpecError
from tests.networks import own_modules


def of(module, **kwargs):
    return {"module": module if ":" in module else f"{own_modules.__name__}:{module}", "kwargs": kwargs}


def built(options, key=1):
    with fork_rng(key, torch.device("cpu")):
        return Module([(2,)], **options)


def test_parameters_follow_from_the_key_of_the_node():
    options = {"module": "torch.nn:Linear", "kwargs": {"in_features": 2, "out_features": 2}}
    weights = [built(options, key).module.weight for key in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_tensor_is_one_stream_and_a_list_several():
    one = built({"module": "torch.nn:Linear", "kwargs": {"in_features": 2, "out_features": 2}})
    several = built(of("Halves", in_features=2, out_features=8))
    assert [len(block(torch.zeros(3, 2))) for block in (one, several)] == [1, 2]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (of("THERE"), "THERE is an object already"),
        (of("number"), "number returned int, and no torch.nn.Module"),
        (of("absent"), "there is no .*absent"),
        (of("not_a_module_at_all:Layer"), "there is no not_a_module_at_all:Layer"),
    ],
)
def test_what_makes_no_module(options, reason):
    with pytest.raises(SpecError, match=reason) as caught:
        built(options)
    assert caught.value.problems[0].path == ("module",)


def test_what_is_no_stream():
    lstm = {"module": "torch.nn:LSTM", "kwargs": {"input_size": 2, "hidden_size": 3, "batch_first": True}}
    with pytest.raises(TypeError, match=r"torch.nn:LSTM returned Tensor, tuple(.|\n)*self.lstm\(x\)\[0\]"):
        built(lstm)(torch.zeros(1, 4, 2))


@pytest.mark.parametrize(
    ("module", "kwargs", "draws"),
    [
        ("torch.nn:Linear", {"in_features": 2, "out_features": 3}, False),
        ("torch.nn:Dropout", {"p": 0.1}, True),
        (f"{own_modules.__name__}:Halves", {"in_features": 2, "out_features": 8}, True),
    ],
)
def test_modules_that_may_draw_are_given_seeds(module, kwargs, draws):
    assert may_draw(built({"module": module, "kwargs": kwargs})) == draws

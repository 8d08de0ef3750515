"""Any nn.Module as a block: seeded by the node, trained by the rules of blocks, or refused with what to do."""

from __future__ import annotations

import pytest
import torch
from petra_graph_modules import declared
from petra_graph_modules.declared import ModuleOptions
from petra_graph_modules.module_blocks import Module

from petra_graph.blocks.randomness import fork_rng, may_draw
from petra_graph.errors import SpecError
from petra_graph.kinds.block import BLOCK
from petra_graph.kinds.plugin import Plugin, load
from petra_graph.testing import Trial
from tests.networks import own_modules
from tests.support.kit import kept

ROW = (9,)
UNET = {"build": "tests.networks.cut_networks:UNet", "shape": (1, 8, 8)}
TRIALS = {
    "module": (
        declared.MODULE,
        [(3, 6, 6)],
        {"module": "torch.nn:Conv2d", "kwargs": {"in_channels": 3, "out_channels": 4, "kernel_size": [3, 3]}},
    ),
    "module, several streams": (
        declared.MODULE,
        [ROW, ROW],
        {"module": "torch.nn:Bilinear", "kwargs": {"in1_features": 9, "in2_features": 9, "out_features": 2}},
    ),
    "module-head": (
        declared.MODULE_HEAD,
        [ROW],
        {"module": "torch.nn:Linear", "kwargs": {"in_features": 9, "out_features": 3}},
    ),
    "module-part": (declared.MODULE_PART, [(1, 8, 8)], {**UNET, "node": "down.0"}),
    "module-part-head": (declared.MODULE_PART_HEAD, [(4, 8, 8)], {**UNET, "node": "last"}),
}


@pytest.mark.parametrize("trial", TRIALS)
def test_it_keeps_every_promise(trial):
    block, inputs, options = TRIALS[trial]
    kept(Trial.of(block, inputs, options))


def made(block, inputs, options):
    return load(Plugin(kind=BLOCK, name="one", distribution="mine", declaration=block))(
        inputs, block.options(**options)
    )


@pytest.mark.parametrize("trial", TRIALS)
def test_modules_of_torchs_layers_are_given_no_seeds(trial):
    block, inputs, options = TRIALS[trial]
    of_ones_own = trial == "module-part"  # a class of this file's network
    assert may_draw(made(block, inputs, options)) == of_ones_own


@pytest.mark.parametrize(
    ("module", "kwargs"),
    [("torch.nn:Dropout", {"p": 0.1}), (f"{own_modules.__name__}:Halves", {"in_features": 9, "out_features": 8})],
)
def test_modules_that_draw_and_those_of_ones_own_are_given_seeds(module, kwargs):
    assert may_draw(made(declared.MODULE, [ROW], {"module": module, "kwargs": kwargs}))


def of(module, **kwargs):
    return {"module": module if ":" in module else f"{own_modules.__name__}:{module}", "kwargs": kwargs}


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        ([(4, 6, 6)], of("layers", channels=4, dropout=0.3)),
        ([(5,)], of("Halves", in_features=5, out_features=8)),
    ],
)
def test_it_keeps_every_promise_of_a_block(inputs, options):
    kept(Trial.of(declared.MODULE, inputs, options))


def built(options, key=1):
    with fork_rng(key, torch.device("cpu")):
        return Module([(2,)], options)


def test_parameters_follow_from_the_key_of_the_node():
    options = ModuleOptions(module="torch.nn:Linear", kwargs={"in_features": 2, "out_features": 2})
    weights = [built(options, key).module.weight for key in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_tensor_is_one_stream_and_a_list_several():
    one = built(ModuleOptions(module="torch.nn:Linear", kwargs={"in_features": 2, "out_features": 2}))
    several = built(ModuleOptions(**of("Halves", in_features=2, out_features=8)))
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
        built(ModuleOptions(**options))
    assert caught.value.problems[0].path == ("module",)


def test_what_is_no_stream():
    lstm = ModuleOptions(module="torch.nn:LSTM", kwargs={"input_size": 2, "hidden_size": 3, "batch_first": True})
    with pytest.raises(TypeError, match=r"torch.nn:LSTM returned Tensor, tuple(.|\n)*self.lstm\(x\)\[0\]"):
        built(lstm)(torch.zeros(1, 4, 2))

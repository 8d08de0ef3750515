"""Every first-party block keeps every promise that is checked; convolutions in direct calls have the bits of `nn.Sequential`."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from petra_graph.blocks import frozen_statistics
from petra_graph.catalog.blocks import (
    Add,
    Additive,
    ConvStem,
    DownBasic,
    DownBottleneck,
    LinearStem,
    PoolLinear,
    ResBasic,
    ResBottleneck,
    RevBasic,
    RevBottleneck,
    RevMlp,
    conv_layer,
)
from petra_graph.testing import Trial
from petra_graph.testing.block_checks import Harness
from tests.support.kit import kept
from tests.support.pipelines import BLOCKS

IMAGE, PLANE, ROW = (3, 6, 6), (8, 6, 6), (9,)
TRIALS = {
    "conv-stem": (ConvStem, [IMAGE], {"channels": 4}),
    "conv-stem, large images": (ConvStem, [IMAGE], {"channels": 4, "kernel": 7, "stride": 2, "pool": 2}),
    "conv-stem, one stream": (ConvStem, [IMAGE], {"channels": 4, "streams": 1}),
    "linear-stem": (LinearStem, [IMAGE], {"features": 4}),
    "linear-stem, one stream": (LinearStem, [ROW], {"features": 4, "streams": 1}),
    "rev-basic": (RevBasic, [PLANE, PLANE], {}),
    "rev-basic, dropout": (RevBasic, [PLANE, PLANE], {"dropout": 0.3}),
    "rev-bottleneck": (RevBottleneck, [PLANE, PLANE], {"hidden": 4}),
    "rev-bottleneck, dropout": (RevBottleneck, [PLANE, PLANE], {"hidden": 4, "dropout": 0.3}),
    "rev-mlp": (RevMlp, [ROW, ROW], {"hidden": 5}),
    "rev-mlp, dropout": (RevMlp, [ROW, ROW], {"hidden": 5, "dropout": 0.3, "activation": "gelu"}),
    "rev-mlp, tanh": (RevMlp, [ROW, ROW], {"hidden": 5, "activation": "tanh"}),
    "down-basic": (DownBasic, [PLANE, PLANE], {"channels": 6, "stride": 2}),
    "down-bottleneck": (DownBottleneck, [PLANE, PLANE], {"channels": 12, "hidden": 4, "stride": 2}),
    "res-basic": (ResBasic, [PLANE], {"channels": 8}),
    "res-basic, stride": (ResBasic, [PLANE], {"channels": 6, "stride": 2}),
    "res-bottleneck": (ResBottleneck, [PLANE], {"channels": 8, "hidden": 4}),
    "res-bottleneck, stride": (ResBottleneck, [PLANE], {"channels": 12, "hidden": 4, "stride": 2}),
    "add": (Add, [PLANE] * 6, {}),
    "add, one stream": (Add, [ROW] * 3, {"streams": 1}),
    "additive": (Additive, [ROW, ROW], {"f": "torch.nn:Linear", "kwargs": {"in_features": 9, "out_features": 9}}),
    "pool-linear": (PoolLinear, [PLANE, PLANE], {"outputs": 5}),
    "pool-linear, rows": (PoolLinear, [ROW], {"outputs": 5}),
}
ALL_BLOCKS = [one.code for one in BLOCKS.values() if one.code.__module__ == "petra_graph.catalog.blocks"]


@pytest.mark.parametrize("trial", TRIALS)
def test_it_keeps_every_promise(trial):
    block, inputs, options = TRIALS[trial]
    kept(Trial.of(block, inputs, options))


@pytest.mark.parametrize("block", ALL_BLOCKS, ids=lambda block: block.__name__)
def test_none_is_left_out(block):
    assert any(block is tried for tried, _, _ in TRIALS.values())


def test_add_refuses_streams_that_do_not_pair_up():
    with pytest.raises(ValueError, match="its inputs carry 3 streams, which is not a multiple of streams = 2"):
        Harness(Trial.of(Add, [ROW] * 3))


def test_add_pairs_streams_in_the_order_of_the_inputs():
    harness = Harness(Trial.of(Add, [PLANE] * 6))
    streams = harness.inputs(0)
    a, b = harness.block(*streams)
    assert torch.equal(a, streams[0] + streams[2] + streams[4])
    assert torch.equal(b, streams[1] + streams[3] + streams[5])


# --- convolution, normalisation and ReLU in direct calls ---


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_bits_are_those_of_a_sequence_of_modules(relu, frozen, training):
    torch.manual_seed(0)
    own = conv_layer(4, 6, kernel=3, stride=2, relu=relu).train(training)
    plain = nn.Sequential(*copy.deepcopy(list(own))).train(training)
    x = torch.randn(3, 4, 8, 8).contiguous(memory_format=torch.channels_last)
    found = []
    for module in (own, plain):
        read = x.clone().requires_grad_()
        for _ in range(2):
            if frozen:
                with frozen_statistics(module):
                    y = module(read)
            else:
                y = module(read)
        y.square().sum().backward()
        found.append([y, read.grad, *(one.grad for one in module.parameters()), *module.buffers()])
    assert list(own.state_dict()) == list(plain.state_dict())
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_layer_with_a_hook_is_called_as_a_module():
    module, seen = conv_layer(2, 2, kernel=1), []
    module[1].register_forward_hook(lambda *_: seen.append(1))
    module(torch.randn(2, 2, 3, 3))
    assert seen == [1]


CHANGES = {
    "another convolution": lambda made: made.__setitem__(0, nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")),
    "another activation": lambda made: made.__setitem__(2, nn.GELU()),
    "one more layer": lambda made: made.append(nn.Tanh()),
    "no normalisation": lambda made: made.__delitem__(1),
    "mean of all batches": lambda made: setattr(made[1], "momentum", None),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_layers_that_are_replaced_or_added_are_called(change):
    module = conv_layer(2, 3, kernel=1)
    change(module)
    x = torch.randn(2, 2, 4, 4)
    assert torch.equal(module(x), nn.Sequential(*copy.deepcopy(list(module)))(x))


def test_a_tracer_sees_modules():
    module, x = conv_layer(2, 3, kernel=1), torch.randn(2, 2, 4, 4)
    assert torch.equal(torch.fx.symbolic_trace(module)(x), module(x))

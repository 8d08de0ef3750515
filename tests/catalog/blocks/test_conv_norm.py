"""Convolution, normalisation and ReLU in direct calls are those of `nn.Sequential`, to the bit, and a layer that is hooked is called."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from petra_graph.blocks import frozen_statistics
from petra_graph.catalog.blocks import conv_norm, conv_norm_relu


@pytest.mark.parametrize("made", [conv_norm, conv_norm_relu])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_bits_are_those_of_a_sequence_of_modules(made, frozen, training):
    torch.manual_seed(0)
    own = made(4, 6, kernel=3, stride=2).train(training)
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
    module, seen = conv_norm_relu(2, 2, kernel=1), []
    module[1].register_forward_hook(lambda *_: seen.append(1))
    module(torch.randn(2, 2, 3, 3))
    assert seen == [1]

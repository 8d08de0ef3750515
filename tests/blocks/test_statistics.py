"""Statistics are frozen and thawed; what a module returns does not change."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from petra_graph.blocks import frozen_statistics


def state(module):
    return {key: value.clone() for key, value in module.state_dict().items()}


@pytest.mark.parametrize("training", [True, False])
def test_instance_normalisation_writes_nothing_and_returns_the_same(training):
    """torch hands it its buffers whatever its switch says, so that every micro-batch counted twice."""
    torch.manual_seed(0)
    module, x = nn.InstanceNorm2d(3, track_running_stats=True), torch.randn(4, 3, 5, 5) + 2
    module(x)
    module.train(training)
    before = state(module)
    with frozen_statistics(module), frozen_statistics(module):
        found = module(x)
    assert all(torch.equal(value, before[key]) for key, value in state(module).items())
    assert torch.equal(module(x), found)
    assert torch.equal(module.running_mean, before["running_mean"]) is not training

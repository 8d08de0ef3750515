"""Every first-party block keeps every promise that is checked."""

from __future__ import annotations

import pytest
import torch

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

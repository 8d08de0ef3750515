"""The gradients that each segment of a stage sends to other replicas."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from petra_graph.runtime.replicas import _StageReducer
from tests.support.pipelines import CHAIN, SHAPES, pipeline


def test_what_segments_share_is_sent_by_the_one_whose_backward_is_the_last():
    """Each sent it, and the first one before the gradient was whole."""
    (executor,) = pipeline(CHAIN, SHAPES["chain"], stages=(tuple(node.name for node in CHAIN),)).executors
    linears = [
        next(module for module in executor.modules[name].modules() if isinstance(module, nn.Linear))
        for name in ("rev0", "rev2")
    ]
    linears[1].weight = linears[0].weight
    nobody = cast("Any", None)
    reducer = _StageReducer(executor=executor, group=nobody, peers=(), watchdog=nobody)
    sent = reducer._completed_by
    every = [one for of_segment in sent.values() for one in of_segment]
    assert len(every) == len({id(one) for module in executor.modules.values() for one in module.parameters()})
    assert any(one is linears[0].weight for one in sent["rev0"])
    assert all(isinstance(one, torch.Tensor) and one is not linears[0].weight for one in sent["rev2"])

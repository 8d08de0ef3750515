"""The optimizer of this package continues a checkpoint to the bit."""

from __future__ import annotations

import pytest

from petra_graph.kinds.optimizer import OPTIMIZER
from petra_graph.registry.registry import discover
from petra_graph.testing import OptimizerTrial
from tests.support.kit import kept


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "momentum": 0.0}])
def test_lars_continues_a_checkpoint(options):
    kept(OptimizerTrial.of(discover().resolve(OPTIMIZER, "lars"), {"lr": 0.1, **options}))

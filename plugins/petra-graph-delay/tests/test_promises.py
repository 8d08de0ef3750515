"""Corrected optimizers keep every promise of an optimizer, in stages with and without delay."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from petra_graph.kinds.correction import CORRECTION, Corrected
from petra_graph.kinds.optimizer import OPTIMIZER
from petra_graph.registry.registry import discover
from petra_graph.testing import OptimizerTrial
from tests.support.kit import kept

SPIKE: dict[str, Any] = {"correction": "spike"}
FEEDBACK: dict[str, Any] = {"correction": "error-feedback"}
PREDICT, DISCREPANCY = {"predict": True}, {"correct_discrepancy": True}
STILL = {"momentum": 0.0, "nesterov": False}
CASES = [
    ("sgd", {}, SPIKE | PREDICT),
    ("sgd", {}, FEEDBACK),
    ("sgd", STILL, DISCREPANCY),
    ("adam", {}, SPIKE | DISCREPANCY),
    ("adam", {}, FEEDBACK | DISCREPANCY),
    ("adamw", {}, SPIKE | PREDICT),
    ("adamw", {}, FEEDBACK),
    ("adamw", {}, DISCREPANCY),
    ("nadam", {"beta1_by_stage": True}, FEEDBACK),
    ("muon", {}, SPIKE),
    ("muon", {}, SPIKE | DISCREPANCY),
    ("muon", {}, FEEDBACK),
    ("soap", {}, DISCREPANCY),
]


@pytest.mark.parametrize(("name", "options", "how"), CASES, ids=str)
def test_it_keeps_every_promise(name, options, how):
    registry = discover()
    plugin, correction = registry.resolve(OPTIMIZER, name), registry.resolve(CORRECTION, "delay")
    code = Corrected(plugin, correction, correction.declaration.options(**how), lambda problem: problem)
    kept(OptimizerTrial.of(evolve(plugin, code=code), {"lr": 0.1, **options}))

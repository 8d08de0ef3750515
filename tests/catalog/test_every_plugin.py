"""Every first-party plugin keeps every promise of its kind; blocks have a file of their own for that."""

from __future__ import annotations

import pytest
from petra_graph_conformance.examined_promises import examine
from petra_graph_conformance.likely_trials import likely_trial

from petra_graph.errors import SpecError
from petra_graph.registry.registry import discover

REGISTRY = discover().only(["petra-graph"])
ALL = [(kind.short, name) for kind in REGISTRY.kinds if kind.short != "blocks" for name in REGISTRY.names(kind)]
OPTIONS = {
    "sgd": [
        {"weight_decay": 0.1},
        {"momentum": 0.0, "nesterov": False},
    ],
    "adam": [
        {"weight_decay": 0.1},
    ],
    "adamw": [
        {"betas": (0.0, 0.5)},
    ],
    "nadam": [{"weight_decay": 0.1, "beta1_by_stage": True}],
    "muon": [
        {"nesterov": False, "momentum": 0.0, "weight_decay": 0.0},
        {"adjust_lr": "original", "ns_steps": 2},
    ],
    "soap": [{"precondition_frequency": 1}, {"max_precond_dim": 3}, {"max_precond_dim": 1}],
    "step": [{"milestones": (1.0, 2.5), "gamma": 0.5}],
    "cosine": [{"final": 0.1}],
    "cross-entropy": [{"label_smoothing": 0.2}],
    "revnet": [{"depth": 50, "width": 0.25, "dropout": 0.1}],
    "ema": [{"every": 3}],
    "digits": [{"crop_padding": 1}],
}
"""Further options to try."""


@pytest.mark.parametrize(("group", "name"), ALL)
def test_it_keeps_every_promise(group, name):
    plugin = REGISTRY.resolve(REGISTRY.kind(group), name)
    for options in ({}, *OPTIONS.get(name, ())):
        try:
            trial = likely_trial(plugin, options)
        except SpecError as error:
            pytest.skip(str(error))
        report = examine(trial, leave_out=["no torch"] if group in {"architectures", "lr_schedules"} else [])
        assert report.kept, str(report)
        assert not report.doubtful

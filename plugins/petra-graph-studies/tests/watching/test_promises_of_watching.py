"""The loggers and callbacks of this distribution keep their promises; a logger is tried if its package is installed."""

from __future__ import annotations

import pytest
from petra_graph_conformance.examined_promises import examine
from petra_graph_conformance.likely_trials import likely_trial

from petra_graph.errors import SpecError
from petra_graph.registry.registry import discover

REGISTRY = discover().only(["petra-graph-studies"])
OPTIONS = {"profiler": [{"first": 1, "last": 3}]}


@pytest.mark.filterwarnings("default")  # those of the packages
@pytest.mark.parametrize("label", ["callbacks/predictions", "callbacks/profiler", "loggers/mlflow", "loggers/wandb"])
def test_it_keeps_every_promise(label):
    group, _, name = label.partition("/")
    plugin = REGISTRY.resolve(REGISTRY.kind(group), name)
    for options in ({}, *OPTIONS.get(name, ())):
        try:
            trial = likely_trial(plugin, options)
        except SpecError as error:
            pytest.skip(str(error))
        report = examine(trial)
        assert report.kept, str(report)
        assert not report.doubtful

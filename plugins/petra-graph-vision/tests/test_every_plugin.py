"""Every plugin of this package but its data sets keeps every promise of its kind; these have a file of their own for that."""

from __future__ import annotations

import pytest
from petra_graph_conformance.examined_promises import examine
from petra_graph_conformance.likely_trials import likely_trial

from petra_graph.registry.registry import discover

REGISTRY = discover().only(["petra-graph-vision"])
ALL = [(kind.short, name) for kind in REGISTRY.kinds if kind.short != "datasets" for name in REGISTRY.names(kind)]
OPTIONS = {
    "f1": [{"average": "micro"}, {"average": "weighted"}],
    "lars": [{"weight_decay": 0.1, "momentum": 0.0}],
}
"""Further options to try."""


@pytest.mark.parametrize(("group", "name"), ALL)
def test_it_keeps_every_promise(group, name):
    plugin = REGISTRY.resolve(REGISTRY.kind(group), name)
    for options in ({}, *OPTIONS.get(name, ())):
        report = examine(likely_trial(plugin, options))
        assert report.kept, str(report)
        assert not report.doubtful

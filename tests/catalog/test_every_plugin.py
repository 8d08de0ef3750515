"""Every first-party optimizer, loss and data set passes its check; blocks have a file of their own for that."""

from __future__ import annotations

import pytest

from petra_graph.plugins.contract import KINDS
from petra_graph.plugins.registry import discover
from petra_graph.testing import TRIALS
from tests.support.kit import kept

REGISTRY = discover().only(["petra-graph"])
# The first has targets that are no classes, the second reads Datasets of one's own; both have tests of their own.
APART = {"mean-squared-error", "torch"}
BY_SHORT = {kind.short: kind for kind in KINDS}
ALL = [
    (short, name)
    for short in TRIALS
    if short != "blocks"
    for name in REGISTRY.names(BY_SHORT[short])
    if name not in APART
]
OPTIONS = {
    "sgd": [{"weight_decay": 0.1}, {"momentum": 0.0, "nesterov": False}],
    "adam": [{"weight_decay": 0.1}],
    "adamw": [{"betas": [0.0, 0.5]}],
    "muon": [{"nesterov": False, "momentum": 0.0, "weight_decay": 0.0}],
    "cross-entropy": [{"label_smoothing": 0.2}],
    "digits": [{"crop_padding": 1}],
}
"""Further options to try."""


@pytest.mark.parametrize(("group", "name"), ALL)
def test_it_passes_its_check(group, name):
    plugin = REGISTRY.resolve(BY_SHORT[group], name)
    for options in ({}, *OPTIONS.get(name, ())):
        kept(TRIALS[group].of(plugin, {"lr": 0.1, **options} if group == "optimizers" else options))

"""Architectures, each wrong in one way: the promise that it breaks says so."""

from __future__ import annotations

import random

import numpy as np
import pytest
from petra_graph_conformance import ArchitectureTrial

from petra_graph.errors import SpecError
from petra_graph.plugins import ArchitectureDeclaration, DataFacts, NodeSpec
from tests.support.kit import kept
from tests.support.plugin_of_each_kind import broken, declared

STEM = NodeSpec(name="stem", block="linear-stem", options={"features": 4})
LAYER = NodeSpec(name="layer", block="rev-mlp", kind="reversible", repeat=2, options={"hidden": 4})


def sound(options, facts):
    if facts.classes is None:
        raise SpecError("the number of classes is unknown", "choose a data set that has one")
    return (STEM, LAYER, NodeSpec(name="head", block="pool-linear", options={"outputs": facts.classes}))


def with_head(**options):
    return lambda _, facts: (STEM, LAYER, NodeSpec(name="head", block="pool-linear", options=options))


def refuses_without_a_hint(options, facts):
    if len(facts.shape) == 1:
        raise SpecError("no images")
    return sound(options, facts)


def trial(build):
    return ArchitectureTrial.of(declared(ArchitectureDeclaration, build))


def test_what_is_sound_passes():
    declaration = declared(ArchitectureDeclaration, sound)
    assert kept(ArchitectureTrial.of(declaration), leave_out=["no torch"]).kept
    rows = DataFacts(shape=(6,), dtype="float32", classes=2)
    report = kept(ArchitectureTrial.of(declaration, facts=rows), leave_out=["no torch"])
    assert report.trial == "samples 6; NoOptions()"


@pytest.mark.parametrize(
    ("build", "promise", "found"),
    [
        (lambda options, facts: None, "nodes", "its build returns None, not a tuple of NodeSpec"),
        (lambda options, facts: (STEM, "layer"), "nodes", "its build returns a str among its nodes"),
        (
            lambda options, facts: (NodeSpec(name=f"n{random.random()}", block="add"),),
            "nodes",
            "it returns other nodes each time",
        ),
        (
            with_head(outputs=np.arange(10)),
            "nodes",
            "options of node 'head' cannot be written to a resolved specification",
        ),
        (lambda options, facts: (STEM, NodeSpec(name="a", block="rev-mpl")), "graph", 'unknown block "rev-mpl"'),
        (with_head(output=10), "graph", 'unknown key "output" in the options of block "pool-linear"'),
        (lambda options, facts: (STEM, LAYER), "graph", "the graph has no head node"),
        (with_head(outputs=3), "network", "its head returns 3 for a sample, of 10 classes"),
        (
            lambda options, facts: (
                NodeSpec(name="s", block="linear-stem", options={"features": 4, "streams": 1}),
                *sound(options, facts)[1:],
            ),
            "network",
            'block "rev-mlp" reads 2 streams, and its inputs carry 1',
        ),
        (lambda options, facts: sound(options, facts) if facts.shape[2] else (), "other samples", "IndexError"),
        (refuses_without_a_hint, "other samples", "samples 16 are refused without a hint"),
    ],
)
def test_it_is_caught(build, promise, found):
    assert found in broken(trial(build), "no torch")[promise]

"""A second evaluation of a block gives its forward's outputs: with a graph or without, after other micro-batches."""

from __future__ import annotations

from petra_graph.testing.harness import Harness
from petra_graph.testing.promise import expect_close
from petra_graph.testing.trial import Trial

REMEDY = (
    "let outputs follow from inputs, parameters and torch's own generator alone: "
    "no counters, no caches, no question whether gradients are on"
)


def check_recomputation(trial: Trial) -> None:
    """The outputs of each micro-batch are the same with a graph, after others have passed."""
    harness = Harness(trial)
    for trip in harness.train():
        outputs, _ = harness.plain_pass(trip.m, trip.inputs, trip.gradients)
        found = "the same micro-batch gives other outputs when it is evaluated again"
        expect_close("recomputation", found, outputs, trip.outputs, remedy=REMEDY)

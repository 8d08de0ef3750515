"""Evaluating a block again gives what its forward gave: with a graph or without, whatever ran in between."""

from __future__ import annotations

import torch

from petra_graph.testing.passage import Rig, plain_pass, train
from petra_graph.testing.promise import expect_close
from petra_graph.testing.trial import Trial

REMEDY = (
    "let outputs follow from inputs, parameters and torch's own generator alone: "
    "no counters, no caches, no question whether gradients are on"
)


def check_recomputation(trial: Trial) -> None:
    """Each micro-batch's outputs come out again, with a graph, after others have passed."""
    numerics = trial.numerics("float64")
    block = trial.build(numerics)
    for passage in train(trial, Rig(block, numerics)):
        again, _ = plain_pass(block, numerics, passage.m, passage.inputs, passage.gradients)
        what = "the same micro-batch gives other outputs when it is evaluated again"
        expect_close("recomputation", what, again, passage.outputs, dtype=torch.float64, remedy=REMEDY)

"""Random functions follow from a micro-batch's key: equal in forward and backward, different between micro-batches."""

from __future__ import annotations

import random

import numpy as np
import torch

from petra_graph.testing.harness import Harness, gradients_for
from petra_graph.testing.promise import BrokenPromise, all_equal, largest_difference
from petra_graph.testing.trial import Trial

PROMISE = "randomness"
REMEDY = "draw with torch functions on the stream's own device and its default generator: dropout, torch.rand_like"


def check_randomness(trial: Trial) -> None:
    """One micro-batch draws the same numbers whenever it runs, another one others, and no global generator moves.

    `check_inverse` checks that the reconstruction uses the forward's masks: a wrong mask gives a wrong input.
    """
    harness = Harness(trial)
    inputs = harness.inputs(0)
    before = _generators()
    first, second = harness.peek(0, inputs), harness.peek(0, inputs)
    if not all_equal(first, second):
        difference = f"outputs differ by up to {largest_difference(first, second):.1e}"
        remedy = f"{REMEDY}; not with numpy, `random` or a generator of the block's own"
        raise BrokenPromise(PROMISE, f"the same micro-batch drew other numbers: {difference}", remedy)
    outputs = harness.forward(0, inputs)
    harness.backward(0, outputs, gradients_for(0, outputs))
    moved = [name for name, state in _generators().items() if state != before[name]]
    if moved:
        raise BrokenPromise(PROMISE, f"training moved the global generator of {' and '.join(moved)}", REMEDY)
    if _draws(trial) and all_equal(first, harness.peek(1, inputs)):
        found = "the block draws random numbers, and two micro-batches drew the same"
        raise BrokenPromise(PROMISE, found, f"{REMEDY}; seed nothing")


def _draws(trial: Trial) -> bool:
    """Whether an evaluation of the block moves torch's generator."""
    harness = Harness(trial)
    inputs = harness.inputs(0)
    with harness.without_graph():
        before = torch.get_rng_state()
        harness.block(*inputs)
        return not torch.equal(torch.get_rng_state(), before)


def _generators() -> dict[str, bytes]:
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": repr(np.random.get_state()).encode(),  # noqa: NPY002  the global one is observed here, not used
        "python": repr(random.getstate()).encode(),
    }

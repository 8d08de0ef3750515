"""Random functions follow from a micro-batch's key: equal in forward and backward, different between micro-batches."""

from __future__ import annotations

import random

import numpy as np
import torch

from petra_graph.blocks import Streams, frozen_statistics
from petra_graph.testing.passage import Rig, gradients_for
from petra_graph.testing.promise import BrokenPromise
from petra_graph.testing.trial import NODE, Trial

PROMISE = "randomness"
REMEDY = "draw with torch functions on the stream's own device and its default generator: dropout, torch.rand_like"


def check_randomness(trial: Trial) -> None:
    """One micro-batch draws the same numbers whenever it runs, another one others, and nobody else's generator moves.

    That the reconstruction sees the forward's masks is `check_inverse`'s: a wrong mask gives a wrong input.
    """
    numerics = trial.numerics("float64")
    rig = Rig(trial.build(numerics), numerics)
    inputs = trial.streams(numerics, 0)
    before = _generators()
    first, second = rig.peek(0, inputs), rig.peek(0, inputs)
    if not _same(first, second):
        found = f"the same micro-batch drew other numbers: outputs differ by up to {_difference(first, second):.1e}"
        raise BrokenPromise(PROMISE, found, f"{REMEDY}; not with numpy, `random` or a generator of the block's own")
    outputs = rig.forward(0, inputs)
    rig.backward(0, outputs, gradients_for(0, outputs))
    moved = [name for name, state in _generators().items() if state != before[name]]
    if moved:
        raise BrokenPromise(PROMISE, f"training moved the global generator of {' and '.join(moved)}", REMEDY)
    if _draws(trial) and _same(first, rig.peek(1, inputs)):
        found = "the block draws random numbers, and two micro-batches drew the same"
        raise BrokenPromise(PROMISE, found, f"{REMEDY}; seed nothing")


def _draws(trial: Trial) -> bool:
    """Tell whether the block moves torch's generator while it is evaluated."""
    numerics = trial.numerics("float64")
    block = trial.build(numerics)
    inputs = trial.streams(numerics, 0)
    with torch.no_grad(), frozen_statistics(block), numerics.node(NODE, 0):
        before = torch.get_rng_state()
        block(*inputs)
        return not torch.equal(torch.get_rng_state(), before)


def _generators() -> dict[str, bytes]:
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": repr(np.random.get_state()).encode(),  # noqa: NPY002  the global one is watched here, not used
        "python": repr(random.getstate()).encode(),
    }


def _same(one: Streams, other: Streams) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _difference(one: Streams, other: Streams) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))

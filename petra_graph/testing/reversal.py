"""A reversible block's input follows from its output, at the cost of one evaluation of F."""

from __future__ import annotations

from petra_graph.testing.harness import Harness, gradients_for, recorded, residual_names
from petra_graph.testing.promise import BrokenPromise, expect_close
from petra_graph.testing.trial import Trial

PROMISE = "inverse"
REMEDY = (
    "undo the steps of forward in the opposite order, and evaluate F at the same tensor as forward did; "
    "F must be a function of its argument, the parameters and torch's own generator"
)


def check_inverse(trial: Trial) -> None:
    """`inverse` and `reverse_vjp` reconstruct the input: in training mode, with the forward's dropout masks.

    Several micro-batches are in flight, as in a pipeline.
    """
    for harness in (Harness(trial, "float64"), Harness(trial, "float32")):
        dtype = harness.numerics.dtype
        for trip in harness.train():
            found = harness.invert(trip.m, trip.outputs)
            expect_close(PROMISE, "inverse(*forward(*x)) is not x", found, trip.inputs, dtype=dtype, remedy=REMEDY)
            message, found = "the input that reverse_vjp reconstructs is not x", trip.reverse.inputs
            expect_close(PROMISE, message, found, trip.inputs, dtype=dtype, remedy=REMEDY)


def check_one_evaluation(trial: Trial) -> None:
    """The backward of a coupling evaluates each residual function once: the value reconstructs, the graph differentiates."""
    harness = Harness(trial)
    outputs = harness.forward(0, harness.inputs(0))
    with recorded(harness.block) as values:
        harness.backward(0, outputs, gradients_for(0, outputs))
    counts = {name: len(values.get(name, ())) for name in residual_names(harness.block)}
    wrong = [(name, count) for name, count in counts.items() if count != 1]
    if wrong:
        found = ", ".join(f"`{name}` was evaluated {count} times in one backward" for name, count in wrong)
        remedy = "leave reverse_vjp to the coupling; each more evaluation costs a backward a fourth of a step"
        raise BrokenPromise("one evaluation", found, remedy)

"""The state dictionary of a block holds everything that the block learns."""

from __future__ import annotations

from petra_graph.testing.harness import Harness
from petra_graph.testing.promise import BrokenPromise, all_equal
from petra_graph.testing.trial import Trial

PROMISE = "state dictionary"
REMEDY = "hold learned values in nn.Parameter and running ones in register_buffer, persistent; Linear and BatchNorm do"
MICRO_BATCH = 7
"""A micro-batch on which neither block has trained."""


def check_state_dict(trial: Trial) -> None:
    """A trained block's state, loaded into another one, makes it the same block: in training and in evaluation."""
    trained, other = Harness(trial), Harness(trial, copy=1)
    trained.train()
    state = {key: value.clone() for key, value in trained.block.state_dict().items()}
    try:
        other.block.load_state_dict(state)
    except RuntimeError as error:
        found = f"another block of the same options does not take it: {str(error).splitlines()[-1].strip()}"
        raise BrokenPromise(PROMISE, found, "let its keys and shapes follow from inputs and options alone") from error
    inputs = trained.inputs(MICRO_BATCH)
    for mode in ("training", "evaluation"):
        for harness in (trained, other):
            harness.block.train(mode == "training")
        if not all_equal(trained.peek(MICRO_BATCH, inputs), other.peek(MICRO_BATCH, inputs)):
            raise BrokenPromise(PROMISE, f"a block that has loaded it gives other outputs in {mode} mode", REMEDY)

"""Everything that a block learns is in its state dictionary."""

from __future__ import annotations

import torch

from petra_graph.blocks import Block, Streams
from petra_graph.testing.passage import Rig, train
from petra_graph.testing.promise import BrokenPromise
from petra_graph.testing.trial import Trial

REMEDY = "hold learned values in nn.Parameter and running ones in register_buffer, persistent; Linear and BatchNorm do"
MICRO_BATCH = 7
"""One that neither block has seen."""


def check_state_dict(trial: Trial) -> None:
    """A trained block's state, loaded into another one, makes it the same block: in training and in evaluation."""
    promise = "state dictionary"
    numerics = trial.numerics("float64")
    block, other = trial.build(numerics), trial.build(numerics, copy=1)
    train(trial, Rig(block, numerics))
    state = {key: value.clone() for key, value in block.state_dict().items()}
    try:
        other.load_state_dict(state)
    except RuntimeError as error:
        found = f"another block of the same options does not take it: {str(error).splitlines()[-1].strip()}"
        raise BrokenPromise(promise, found, "let its keys and shapes follow from inputs and options alone") from error
    inputs = trial.streams(numerics, MICRO_BATCH)
    for mode in (True, False):
        if not _same(block, other, trial, inputs, training=mode):
            what = "training" if mode else "evaluation"
            raise BrokenPromise(promise, f"a block that has loaded it gives other outputs in {what} mode", REMEDY)


def _same(block: Block, other: Block, trial: Trial, inputs: Streams, *, training: bool) -> bool:
    outputs = []
    for module in (block, other):
        module.train(training)
        outputs.append(Rig(module, trial.numerics("float64")).peek(MICRO_BATCH, inputs))
    return all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))

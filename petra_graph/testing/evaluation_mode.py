"""In evaluation mode samples are independent, no random number is drawn and no state changes."""

from __future__ import annotations

import torch

from petra_graph.testing.harness import Harness
from petra_graph.testing.promise import BrokenPromise, expect_close
from petra_graph.testing.trial import Trial

PROMISE = "evaluation mode"


def check_evaluation_mode(trial: Trial) -> None:
    """A batch gives the outputs of its samples one by one, since the last batch of an evaluation may be short.

    Buffers and torch's generator stay as they are.
    """
    harness = Harness(trial)
    harness.train()
    block = harness.block.eval()
    inputs = harness.inputs(0)
    state = {key: value.clone() for key, value in block.state_dict().items()}
    generator = torch.get_rng_state()
    with torch.no_grad():
        whole = block(*inputs)
        single = [block(*(stream[row : row + 1] for stream in inputs)) for row in range(trial.batch)]
    if not torch.equal(torch.get_rng_state(), generator):
        raise BrokenPromise(PROMISE, "random numbers were drawn", "draw only where self.training; nn.Dropout does")
    changed = [key for key, value in block.state_dict().items() if not torch.equal(value, state[key])]
    if changed:
        raise BrokenPromise(PROMISE, f"{', '.join(changed)} changed", "update buffers only where self.training")
    rows = [torch.cat([streams[index] for streams in single]) for index in range(len(whole))]
    remedy = "normalise with running statistics where not self.training; BatchNorm does"
    expect_close(PROMISE, "a batch's outputs are not those of its samples", rows, whole, remedy=remedy)

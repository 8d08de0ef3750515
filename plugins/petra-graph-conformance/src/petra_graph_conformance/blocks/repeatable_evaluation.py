"""An evaluation of a block follows from its inputs, its parameters and the micro-batch's key alone.

With a graph or without, after other micro-batches, it gives the same outputs; evaluation mode draws no random number.
"""

from __future__ import annotations

import torch

from petra_graph.blocks import Block, Streams
from petra_graph.blocks.randomness import draws_watched, fork_rng, may_draw
from petra_graph.kinds.author_code import raised_at
from petra_graph_conformance.blocks.block_trial import Trial
from petra_graph_conformance.blocks.micro_batches_through_block import Harness, gradients_for
from petra_graph_conformance.broken_promise import BrokenPromise, all_equal, expect_close, largest_difference
from petra_graph_conformance.moved_generators import moved_since, states

_DRAW = "draw with torch functions on the stream's own device and its default generator: dropout, torch.rand_like"


def check_recomputation(trial: Trial) -> None:
    """The outputs of each micro-batch are the same with a graph, after others have passed."""
    remedy = (
        "let outputs follow from inputs, parameters and torch's own generator alone: "
        "no counters, no caches, no question whether gradients are on"
    )
    harness = Harness(trial)
    for trip in harness.train():
        outputs, _ = harness.plain_pass(trip.m, trip.inputs, trip.gradients)
        found = "the same micro-batch gives other outputs when it is evaluated again"
        expect_close("recomputation", found, outputs, trip.outputs, dtype=harness.precision, remedy=remedy)


def check_randomness(trial: Trial) -> None:
    """One micro-batch draws the same numbers whenever it runs, another one others, and no global generator moves.

    `check_inverse` checks that the reconstruction uses the forward's masks: a wrong mask gives a wrong input.
    """
    harness = Harness(trial)
    inputs = harness.inputs(0)
    if not may_draw(harness.block):
        with draws_watched() as drew, fork_rng(0, torch.device("cpu")), harness.without_graph():
            harness.block(*inputs)
        if drew:
            found = "random numbers were drawn, or micro_batch() was asked, though a class says `draws = False`"
            raise BrokenPromise("randomness", found, "leave `draws` out: seeds are set for classes that do not say it")
    before = states()
    first, second = harness.peek(0, inputs), harness.peek(0, inputs)
    if not all_equal(first, second):
        difference = f"outputs differ by up to {largest_difference(first, second):.1e}"
        remedy = f"{_DRAW}; not with numpy, `random` or a generator of the block's own"
        raise BrokenPromise("randomness", f"the same micro-batch drew other numbers: {difference}", remedy)
    outputs = harness.forward(0, inputs)
    harness.backward(0, outputs, gradients_for(0, outputs))
    moved = moved_since(before)
    if moved:
        raise BrokenPromise("randomness", f"training moved the global generator of {' and '.join(moved)}", _DRAW)
    if seeds_itself(Harness(trial), inputs):
        found = "the block seeds torch's generator, so all micro-batches draw the same"
        raise BrokenPromise("randomness", found, f"{_DRAW}; seed nothing")


def seeds_itself(harness: Harness, inputs: Streams) -> bool:
    """Whether two micro-batches leave torch's generator in one state, though each gave it a key of its own.

    Their outputs would not tell: dropout of a small rate often has the same mask twice.
    """
    return harness.draw(0, inputs) == harness.draw(1, inputs)


def check_evaluation_mode(trial: Trial) -> None:
    """A batch gives the outputs of its samples one by one, since the last batch of an evaluation may be short.

    Buffers and torch's generator stay as they are.
    """
    harness = Harness(trial)
    harness.train()
    block = harness.block
    block.eval()
    inputs = harness.inputs(0)
    state = {key: value.clone() for key, value in block.state_dict().items()}
    generator = torch.get_rng_state()
    remedy = "normalise with running statistics where not self.training; BatchNorm does"
    try:
        whole, rows = batch_and_rows(block, inputs)
    except Exception as error:
        found = f"a batch, or one of its samples alone, raised {type(error).__name__} at {raised_at(error)}: {error}"
        raise BrokenPromise("evaluation mode", found, f"{remedy}: the last batch may be one sample") from error
    if not torch.equal(torch.get_rng_state(), generator):
        drawing = "draw only where self.training; nn.Dropout does"
        raise BrokenPromise("evaluation mode", "random numbers were drawn", drawing)
    changed = [key for key, value in block.state_dict().items() if not torch.equal(value, state[key])]
    if changed:
        raise BrokenPromise(
            "evaluation mode", f"{', '.join(changed)} changed", "update buffers only where self.training"
        )
    found = "a batch's outputs are not those of its samples"
    expect_close("evaluation mode", found, rows, whole, dtype=harness.precision, remedy=remedy)


def batch_and_rows(block: Block, inputs: Streams) -> tuple[Streams, Streams]:
    """Return the outputs of a batch, and those of its samples one by one, joined."""
    with torch.no_grad():
        whole = block(*inputs)
        single = [block(*(stream[row : row + 1] for stream in inputs)) for row in range(len(inputs[0]))]
    return whole, tuple(torch.cat([streams[index] for streams in single]) for index in range(len(whole)))

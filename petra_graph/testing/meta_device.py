"""Shapes are known before memory is allocated: a block runs on torch's meta device."""

from __future__ import annotations

import torch

from petra_graph.blocks import Block, Shape, Streams, frozen_statistics
from petra_graph.testing.harness import Harness
from petra_graph.testing.promise import BrokenPromise, author_line, listing
from petra_graph.testing.trial import Trial

PROMISE = "meta device"


def check_meta_device(trial: Trial) -> None:
    """Built on the meta device, or moved there, a block gives the shapes that it gives on the CPU.

    A move there fails as one to an accelerator would: a tensor that is no buffer stays behind.
    """
    harness = Harness(trial, "float32")
    streams = harness.inputs(0)
    with harness.without_graph():
        expected = _shapes(harness.block, streams)
    on_meta = tuple(stream.to("meta") for stream in streams)
    with torch.device("meta"):
        built = trial.block_class(trial.inputs, trial.options)
    moved = harness.block.to("meta")
    reads = "read no values of tensors: no item(), no branch on data; make new ones with x.new_zeros"
    holds = "hold constants with register_buffer, so that they move with the block"
    for way, block, remedy in (("built there", built, reads), ("moved there", moved, holds)):
        try:
            shapes = _shapes(block, on_meta)
        except Exception as error:
            message = str(error).strip().partition("\n")[0]
            found = f"{way}, it raised {type(error).__name__} at {author_line(error)}: {message}"
            raise BrokenPromise(PROMISE, found, remedy) from error
        if shapes != expected:
            found = f"{way}, it gives {listing(shapes)}, and {listing(expected)} on the CPU"
            raise BrokenPromise(PROMISE, found, "let shapes follow from shapes and options alone")


def _shapes(block: Block, streams: Streams) -> tuple[Shape, ...]:
    with torch.no_grad(), frozen_statistics(block):
        return tuple(tuple(stream.shape) for stream in block(*streams))

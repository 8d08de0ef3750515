"""Shapes are known before anything is allocated: a block runs on torch's meta device."""

from __future__ import annotations

import torch

from petra_graph.blocks import Block, Shape, Streams, frozen_statistics
from petra_graph.testing.promise import BrokenPromise, listing, raised_at
from petra_graph.testing.trial import NODE, Trial

PROMISE = "meta device"


def check_meta_device(trial: Trial) -> None:
    """Built on the meta device, or moved there, a block gives the shapes that it gives on the CPU.

    Moving there shows what moving to an accelerator would: a tensor that is no buffer stays behind.
    """
    numerics = trial.numerics("float32")
    streams = trial.streams(numerics, 0)
    built = trial.build(numerics)
    with numerics.node(NODE, 0):
        expected = _shapes(built, streams)
    nowhere = tuple(stream.to("meta") for stream in streams)
    with torch.device("meta"):
        fresh = trial.block_class(trial.inputs, trial.options)
    moved = built.to("meta")
    for how, block, remedy in (
        (
            "built there",
            fresh,
            "read no values of tensors: no item(), no branch on data; make new ones with x.new_zeros",
        ),
        ("moved there", moved, "hold constants with register_buffer, so that they move with the block"),
    ):
        try:
            found = _shapes(block, nowhere)
        except Exception as error:
            what = f"{how}, it raised {type(error).__name__} at {raised_at(error)}: {_first_line(error)}"
            raise BrokenPromise(PROMISE, what, remedy) from error
        if found != expected:
            what = f"{how}, it gives {listing(found)}, and {listing(expected)} on the CPU"
            raise BrokenPromise(PROMISE, what, "let shapes follow from shapes and options alone")


def _shapes(block: Block, streams: Streams) -> tuple[Shape, ...]:
    with torch.no_grad(), frozen_statistics(block):
        return tuple(tuple(stream.shape) for stream in block(*streams))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]

"""What a block returns: a tuple of tensors, a reversible one's shaped as its inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from petra_graph.blocks import frozen_statistics
from petra_graph.testing.promise import BrokenPromise, listing, name_of
from petra_graph.testing.trial import NODE, Trial


def check_shapes(trial: Trial) -> None:
    """Outputs are a tuple of tensors [n, ...] in the streams' type; a reversible block keeps shapes, a head returns one."""
    promise = "shapes"
    numerics = trial.numerics("float64")
    block = trial.build(numerics)
    inputs = trial.streams(numerics, 0)
    with torch.no_grad(), frozen_statistics(block), numerics.node(NODE, 0):
        outputs: Any = block(*inputs)
    if not isinstance(outputs, tuple) or not outputs or not all(isinstance(stream, Tensor) for stream in outputs):
        found = f"forward returned {type(outputs).__name__}"
        raise BrokenPromise(promise, found, "return a tuple of tensors, also where it is one: `return (y,)`")
    shapes = [tuple(stream.shape) for stream in outputs]
    if any(shape[:1] != (trial.batch,) for shape in shapes):
        found = f"{trial.batch} samples came in, and {listing(shapes)} came out"
        raise BrokenPromise(promise, found, "keep the batch as every output's first dimension")
    for stream in outputs:
        if stream.is_floating_point() and stream.dtype != numerics.dtype:
            found = f"an output is {name_of(stream.dtype)} where parameters and inputs are {name_of(numerics.dtype)}"
            remedy = "make new tensors with x.new_zeros or dtype=x.dtype, and register constants with register_buffer"
            raise BrokenPromise(promise, found, remedy)
    wanted = [tuple(stream.shape) for stream in inputs]
    if block.kind == "reversible" and shapes != wanted:
        found = f"{listing(wanted)} came in, and {listing(shapes)} came out"
        raise BrokenPromise(promise, found, "a reversible block keeps shapes; subclass Buffered where they change")
    if block.kind == "head" and len(shapes) != 1:
        raise BrokenPromise(promise, f"a head returned {len(shapes)} streams", "return one, which the loss reads")

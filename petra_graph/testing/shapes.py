"""The outputs of a block are a tuple of tensors; those of a reversible one have the shapes of its inputs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from petra_graph.testing.harness import Harness
from petra_graph.testing.promise import BrokenPromise, listing, name_of
from petra_graph.testing.trial import Trial

PROMISE = "shapes"


def check_shapes(trial: Trial) -> None:
    """Outputs are a tuple of tensors [n, ...] in the streams' type; a reversible block keeps shapes, a head returns one."""
    harness = Harness(trial)
    block, dtype = harness.block, harness.numerics.dtype
    inputs = harness.inputs(0)
    with harness.without_graph():
        outputs: Any = block(*inputs)
    if not isinstance(outputs, tuple) or not outputs or not all(isinstance(stream, Tensor) for stream in outputs):
        found = f"forward returned {type(outputs).__name__}"
        raise BrokenPromise(PROMISE, found, "return a tuple of tensors, also where it is one: `return (y,)`")
    shapes, expected = ([tuple(stream.shape) for stream in streams] for streams in (outputs, inputs))
    if any(shape[:1] != (trial.batch,) for shape in shapes):
        found = f"{trial.batch} samples came in, and {listing(shapes)} came out"
        raise BrokenPromise(PROMISE, found, "keep the batch as every output's first dimension")
    for stream in outputs:
        if stream.is_floating_point() and stream.dtype != dtype:
            found = f"an output is {name_of(stream.dtype)} where parameters and inputs are {name_of(dtype)}"
            remedy = "make new tensors with x.new_zeros or dtype=x.dtype, and register constants with register_buffer"
            raise BrokenPromise(PROMISE, found, remedy)
    if block.kind == "reversible" and shapes != expected:
        found = f"{listing(expected)} came in, and {listing(shapes)} came out"
        raise BrokenPromise(PROMISE, found, "a reversible block keeps shapes; subclass Buffered where they change")
    if block.kind == "head" and len(shapes) != 1:
        raise BrokenPromise(PROMISE, f"a head returned {len(shapes)} streams", "return one, which the loss reads")

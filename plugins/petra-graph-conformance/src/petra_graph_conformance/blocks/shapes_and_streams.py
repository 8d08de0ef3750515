"""A block's streams: shapes that hold on every device, memory that stays its callers'."""

from __future__ import annotations

import traceback
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from petra_graph.blocks import Block, Reversed, Reversible, Shape, Streams, frozen_statistics
from petra_graph.kinds.author_code import is_author_code, raised_at
from petra_graph.measure.build_block import listing
from petra_graph_conformance.blocks.block_trial import NODE, Trial
from petra_graph_conformance.blocks.micro_batches_through_block import Harness, gradients_for
from petra_graph_conformance.broken_promise import BrokenPromise, largest_difference, name_of


def check_shapes(trial: Trial) -> None:
    """Outputs are a tensor, or a tuple of tensors, [n, ...] in the streams' type.

    A reversible block may change shapes, where its inverse returns those of its inputs. `reverse_vjp` returns a `Reversed`.

    An output of integers or booleans carries no gradient. It may follow from the streams, as a mask of samples does, and not from
    parameters, which could not learn from it. A reversible block, which must reconstruct, may hand one on or write to one that it reads.
    """
    harness = Harness(trial, trial.compute or "float64")
    block, dtype = harness.block, harness.numerics.dtype
    inputs = harness.inputs(0)
    with harness.without_graph():
        outputs: Any = block(*inputs)
    if not isinstance(outputs, tuple) or not outputs or not all(isinstance(stream, Tensor) for stream in outputs):
        found = f"forward returned {type(outputs).__name__}"
        raise BrokenPromise("shapes", found, "return a tensor, or a tuple of tensors")
    shapes, expected = ([tuple(stream.shape) for stream in streams] for streams in (outputs, inputs))
    if any(shape[:1] != (trial.batch,) for shape in shapes):
        found = f"{trial.batch} samples came in, and {listing(shapes)} came out"
        raise BrokenPromise("shapes", found, "keep the batch as every output's first dimension")
    for stream in outputs:
        if stream.is_floating_point() and stream.dtype != dtype:
            found = f"an output is {name_of(stream.dtype)} where parameters and inputs are {name_of(dtype)}"
            remedy = "make new tensors with x.new_zeros or dtype=x.dtype, and register constants with register_buffer"
            raise BrokenPromise("shapes", found, remedy)
    _expect_gradients(trial, block, inputs, outputs)
    if block.kind == "reversible" and shapes != expected:
        _expect_shapes_back(harness, outputs, inputs)
    if isinstance(block, Reversible):
        _expect_reversed(harness, block, outputs)


def _expect_reversed(harness: Harness, block: Reversible, outputs: Streams) -> None:
    """Expect a `Reversed`; what raises, the promises of inverse and gradients say."""
    reverse: Any = None
    with suppress(Exception, SystemExit), harness.numerics.node(NODE, 0), frozen_statistics(block):
        reverse = block.reverse_vjp(outputs, gradients_for(0, outputs))
    if not isinstance(reverse, Reversed | None):
        remedy = (
            "return petra_graph.blocks.Reversed(inputs, gradients): two tuples, with as many streams as the block reads"
        )
        raise BrokenPromise("shapes", f"reverse_vjp returned {type(reverse).__name__}", remedy)


def _expect_shapes_back(harness: Harness, outputs: Streams, inputs: Streams) -> None:
    changed = f"{_listed(inputs)} came in, and {_listed(outputs)} came out"
    remedy = "let the inverse return the input streams, in their order; or subclass Buffered"
    try:
        returned = harness.invert(0, outputs)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        found = f"{changed}; the inverse raised {type(error).__name__} at {raised_at(error)}: {error}"
        raise BrokenPromise("shapes", found, remedy) from error
    if [stream.shape for stream in returned] != [stream.shape for stream in inputs]:
        raise BrokenPromise("shapes", f"{changed}; the inverse returns {_listed(returned)}", remedy)


def _listed(streams: Streams) -> str:
    return listing([tuple(stream.shape) for stream in streams])


def _expect_gradients(trial: Trial, block: Block, inputs: Streams, outputs: Streams) -> None:
    whole = [index for index, stream in enumerate(outputs) if not stream.is_floating_point()]
    remedy = "return floating-point streams; integers and booleans have no gradient, so nothing below them could learn"
    if len(whole) == len(outputs):
        kinds = " and ".join(sorted({name_of(stream.dtype) for stream in outputs}))
        raise BrokenPromise("shapes", f"all outputs are {kinds}", remedy)
    if not whole or block.of_network:
        return  # where it is cut is not its author's choice, and what its integers are made of has no gradient there either
    if block.kind == "reversible":
        handed_on = [stream for stream in inputs if not stream.is_floating_point()]
        for index in whole:
            # It may keep the bits that its streams lose in a stream of integers.
            written = index < len(inputs) and inputs[index].dtype == outputs[index].dtype
            if not written and not any(torch.equal(outputs[index], stream) for stream in handed_on):
                found = f"output {index} is {name_of(outputs[index].dtype)}, and is made of floating-point streams"
                raise BrokenPromise("shapes", found, remedy)
        return
    of_others = Harness(trial, trial.compute or "float64", copy=1).peek(0, inputs)
    for index in whole:
        if not torch.equal(outputs[index], of_others[index]):
            found = f"output {index} is {name_of(outputs[index].dtype)}, and follows from parameters"
            raise BrokenPromise("shapes", found, remedy)


def check_streams_untouched(trial: Trial) -> None:
    """Forward leaves its inputs as they are, and backward its outputs and gradients.

    Others hold the same tensors: a buffer, a second consumer, a message in a channel. Where the backward raises, the promises of
    inverse and gradients say so.
    """
    harness = Harness(trial)
    inputs = harness.inputs(0)
    before = _copies(inputs)
    harness.peek(0, inputs)
    _expect_untouched("forward", "input", inputs, before)
    outputs = harness.forward(0, inputs)
    gradients = gradients_for(0, outputs)
    before, gradients_before = _copies(outputs), _copies(gradients)
    with suppress(Exception, SystemExit):
        harness.backward(0, outputs, gradients)
    _expect_untouched("backward", "output", outputs, before)
    _expect_untouched("backward", "gradient", gradients, gradients_before)


def _copies(streams: Streams) -> Streams:
    return tuple(stream.clone() for stream in streams)


def _expect_untouched(where: str, noun: str, streams: Streams, before: Streams) -> None:
    for index, (stream, copy) in enumerate(zip(streams, before, strict=True)):
        if not torch.equal(stream, copy):
            change = f"{largest_difference([stream], [copy]):.1e}"
            found = f"{where} changed its {noun} stream {index} in place, by up to {change}"
            remedy = "write x + y for x += y, and give inplace=True to no layer that reads a stream itself"
            raise BrokenPromise("streams untouched", found, remedy)


def check_meta_device(trial: Trial) -> None:
    """Built on the meta device, or moved there, a block gives the shapes that it gives on the CPU.

    A move there fails as one to an accelerator would: a tensor that is not a buffer stays behind. What torch itself cannot do
    there, such as `parametrizations.orthogonal`, is nobody's fault: plans look at such a block on the CPU.
    """
    harness = Harness(trial, "float32")
    streams = harness.inputs(0)
    with harness.without_graph():
        expected = _shapes_of(harness.block, streams)
    on_meta = tuple(stream.to("meta") for stream in streams)
    reads = "read no values of tensors: no item(), no branch on data; make new ones with x.new_zeros"
    holds = "hold constants with register_buffer, so that they move with the block"
    for way, remedy in (("built there", reads), ("moved there", holds)):
        try:
            with torch.device("meta" if remedy is reads else "cpu"):
                block = trial.block_class(trial.inputs, trial.options) if remedy is reads else harness.block.to("meta")
            shapes = _shapes_of(block, on_meta)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if _torch_refuses_meta(error):
                continue
            message = str(error).strip().partition("\n")[0]
            found = f"{way}, it raised {type(error).__name__} at {raised_at(error)}: {message}"
            raise BrokenPromise("meta device", found, remedy) from error
        if shapes != expected:
            found = f"{way}, it gives {listing(shapes)}, and {listing(expected)} on the CPU"
            raise BrokenPromise("meta device", found, "let shapes follow from shapes and options alone")


def _torch_refuses_meta(error: BaseException) -> bool:
    """Whether torch has no such operation on the meta device, or reads values there in a module or function of its own."""
    reads_values = any(text in str(error) for text in ("cannot be called on meta", "Cannot copy out of meta"))
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    below = takewhile(lambda file: not is_author_code(file), reversed(files))
    of_torch = any(file.startswith(str(Path(torch.nn.__file__).parent)) for file in below)
    return of_torch if reads_values else isinstance(error, NotImplementedError)


def _shapes_of(block: Block, streams: Streams) -> tuple[Shape, ...]:
    with torch.no_grad(), frozen_statistics(block):
        return tuple(tuple(stream.shape) for stream in block(*streams))

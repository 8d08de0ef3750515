"""The streams belong to the caller: a block reads them and leaves them as they are."""

from __future__ import annotations

import torch

from petra_graph.blocks import Streams
from petra_graph.testing.harness import Harness, gradients_for
from petra_graph.testing.promise import BrokenPromise, largest_difference
from petra_graph.testing.trial import Trial

REMEDY = "write x + y for x += y, and give inplace=True to no layer that reads a stream itself"


def check_streams_untouched(trial: Trial) -> None:
    """Forward leaves its inputs as they are, and backward its outputs and gradients.

    Others hold the same tensors: a buffer, a second consumer, a message in a channel.
    """
    harness = Harness(trial)
    inputs = harness.inputs(0)
    before = _copies(inputs)
    harness.peek(0, inputs)
    _compare("forward", "input", inputs, before)
    outputs = harness.forward(0, inputs)
    gradients = gradients_for(0, outputs)
    before, gradients_before = _copies(outputs), _copies(gradients)
    harness.backward(0, outputs, gradients)
    _compare("backward", "output", outputs, before)
    _compare("backward", "gradient", gradients, gradients_before)


def _copies(streams: Streams) -> Streams:
    return tuple(stream.clone() for stream in streams)


def _compare(where: str, noun: str, streams: Streams, before: Streams) -> None:
    for index, (stream, copy) in enumerate(zip(streams, before, strict=True)):
        if not torch.equal(stream, copy):
            change = f"{largest_difference([stream], [copy]):.1e}"
            found = f"{where} changed its {noun} stream {index} in place, by up to {change}"
            raise BrokenPromise("streams untouched", found, REMEDY)

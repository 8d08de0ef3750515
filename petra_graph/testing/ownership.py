"""Who owns the streams: a block reads them and leaves them as they are."""

from __future__ import annotations

import torch

from petra_graph.blocks import Streams
from petra_graph.testing.passage import Rig, gradients_for
from petra_graph.testing.promise import BrokenPromise
from petra_graph.testing.trial import Trial


def check_streams_untouched(trial: Trial) -> None:
    """Forward leaves its inputs as they are, and backward the outputs and gradients that it is given.

    Others hold the same tensors: a buffer, a second consumer, a message on its way.
    """
    numerics = trial.numerics("float64")
    rig = Rig(trial.build(numerics), numerics)
    inputs = trial.streams(numerics, 0)
    given = _copies(inputs)
    rig.peek(0, inputs)
    _compare("forward", "input", inputs, given)
    outputs = rig.forward(0, inputs)
    gradients = gradients_for(0, outputs)
    given, given_gradients = _copies(outputs), _copies(gradients)
    rig.backward(0, outputs, gradients)
    _compare("backward", "output", outputs, given)
    _compare("backward", "gradient", gradients, given_gradients)


def _copies(streams: Streams) -> Streams:
    return tuple(stream.clone() for stream in streams)


def _compare(where: str, what: str, streams: Streams, given: Streams) -> None:
    for index, (stream, before) in enumerate(zip(streams, given, strict=True)):
        if not torch.equal(stream, before):
            found = f"{where} changed its {what} stream {index} in place, by up to {float((stream - before).abs().max()):.1e}"
            remedy = "write x + y for x += y, and give inplace=True to no layer that reads a stream itself"
            raise BrokenPromise("streams untouched", found, remedy)

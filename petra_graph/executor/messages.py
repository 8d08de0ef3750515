"""The messages of a stage: what its segments read of those that have come, and what it sends back.

Decision: the stage that sends a training message encodes it (`precision.channel_dtype`), and the stage that receives it
decodes it, both here, so that no runtime and no placement changes the bits; the cuts do, since edges inside a stage are
not encoded. Neither are samples and targets, nor anything in an evaluation, whose result must not depend on the batch's
size or on the cuts. Each message is encoded alone. A reversible producer reconstructs from the activation that its consumer
returns, which has been encoded on the way there and again on the way back: from a consumer that stores its input the
second time changes nothing (but an int8 scale's last bit), along a chain of reversible stages every hop adds its rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping
from functools import reduce
from typing import cast

import torch
from attrs import frozen

from petra_graph.blocks import Streams
from petra_graph.executor.encoded_tensors import EncodedTensors, decode, encode
from petra_graph.executor.head import HeadResult
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import Edge
from petra_graph.program.stage_program import Segment
from petra_graph.spec.model import StoredDtype


@frozen(kw_only=True)
class Forwarded:
    """The result of a stage's forward."""

    sent: Mapping[Edge, EncodedTensors]
    result: HeadResult | None
    """From the stage that holds the head."""


@frozen(kw_only=True)
class BackwardMessage:
    """The message that a consumer sends back along an edge (algorithm 1, lines 11 and 24)."""

    gradients: EncodedTensors
    activation: EncodedTensors | None
    """The producer's output, for a producer that reconstructs from it."""
    weight: float
    """Of the micro-batch's targets: 1 where each of them counts for one (`HeadResult.weight`), by which the gradients are multiplied."""

    def encoded(self, stored: StoredDtype) -> BackwardMessage:
        """Return the message as it leaves the stage."""
        gradients, activation = cast(Streams, self.gradients), cast(Streams | None, self.activation)
        return BackwardMessage(
            gradients=encode(gradients, stored),
            activation=None if activation is None else encode(activation, stored),
            weight=self.weight,
        )


def returned_edges(segment: Segment, inside: Collection[str]) -> Iterator[tuple[Edge, slice, bool, bool]]:
    """Yield where a segment sends something back: edge, streams, whether their producer reconstructs from them, and whether it is inside the stage."""
    first = 0
    for entry in segment.inputs:
        own = slice(first, first := first + entry.streams)
        if entry.edge.producer != INPUT:
            yield entry.edge, own, entry.returns_activation, entry.edge.producer in inside


def take_inputs(segment: Segment, received: MutableMapping[Edge, EncodedTensors]) -> Streams:
    """Take what a segment reads from the messages that its stage has received."""
    streams: Streams = ()
    for entry in segment.inputs:
        streams += decode(received.pop(entry.edge))
    return streams


def join_messages(messages: list[BackwardMessage]) -> tuple[Streams, Streams | None]:
    """Sum the consumers' gradients, stream by stream, in declared order, () for the head; with the activation of the first that has one."""
    gradients = [decode(message.gradients) for message in messages]
    summed = (
        gradients[0]
        if len(gradients) == 1
        else tuple(reduce(torch.add, parts) for parts in zip(*gradients, strict=True))
    )
    activation = next((message.activation for message in messages if message.activation is not None), None)
    return summed, None if activation is None else decode(activation)

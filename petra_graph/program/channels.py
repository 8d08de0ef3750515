"""The channels of a program: one for each direction of an edge between two stages.

    producer's stage --- forward channel: streams -------------------------> consumer's stage
                     <-- backward channel: gradients (and activations), weight

Messages leave a channel in the order in which they were sent. The compiler decides everything about a channel: its two
stages, the layout of its messages and its capacity. A runtime opens a transport for it and decides nothing.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from attrs import frozen

from petra_graph.program.message_layout import MessageLayout, aligned

Direction = Literal["forward", "backward"]
"""Also the operation at whose end a message leaves, and the one that reads it."""
NEIGHBOUR_CAPACITY = 2
"""Capacity between stages whose depths differ by at most two: one message is written while another one is read."""


class Edge(NamedTuple):
    """A connection of the graph: forwards streams one way, gradients (and activations) the other."""

    producer: str
    consumer: str


class ChannelKey(NamedTuple):
    """One direction of an edge between two stages."""

    edge: Edge
    direction: Direction

    def __str__(self) -> str:
        """Write as `a -> b` or `a <- b`."""
        arrow = "->" if self.direction == "forward" else "<-"
        return f"{self.edge.producer} {arrow} {self.edge.consumer}"


@frozen(kw_only=True)
class Channel:
    """All properties of a channel, known before a process starts."""

    key: ChannelKey
    sender: int
    """Index of the stage that sends."""
    receiver: int
    """Index of the stage that receives."""
    training: MessageLayout
    """Of a backward message: the gradients of the edge's streams, the activation if the producer reconstructs, and the weight of the micro-batch's
    targets."""
    evaluation: MessageLayout | None
    """None for a backward channel, which carries nothing in an evaluation."""
    capacity: int
    """Messages that the channel holds at most."""

    def __str__(self) -> str:
        return str(self.key)

    @property
    def slot_bytes(self) -> int:
        """Bytes of the largest message in memory, rounded up so that slots in a row are aligned."""
        evaluation = 0 if self.evaluation is None else self.evaluation.most_bytes
        return aligned(max(1, self.training.most_bytes, evaluation))


def capacity(producer_depth: int, consumer_depth: int) -> int:
    """Return the number of messages that each channel of an edge between two stages holds.

    The producer is at most depth(producer) - depth(consumer) + 1 messages ahead: it has begun the forwards up to
    m + depth(producer) when its backward of m comes next, which is after the consumer's backward of m - 1, and so
    after the consumer's forward of m + depth(consumer) - 2. The same holds on the way back. With this capacity no
    stage ever waits for room; neighbours under lockstep need one less.
    """
    ahead = producer_depth - consumer_depth
    return NEIGHBOUR_CAPACITY if ahead <= NEIGHBOUR_CAPACITY else ahead + 1

"""What crosses between stages, and how many messages of it may be under way at once.

    producer's stage --- forward channel: streams -------------------------> consumer's stage
                     <-- backward channel: gradients (and activations) -----

A channel is one direction of an edge between two stages; messages leave it in the order in which they came.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from petra_graph.program.stage_program import Edge

Direction = Literal["forward", "backward"]
NEIGHBOUR_CAPACITY = 2
"""Slots of a channel between stages whose depths differ by two at most: one is filled while the other is read."""


class ChannelKey(NamedTuple):
    """One direction of an edge between two stages."""

    edge: Edge
    direction: Direction

    def __str__(self) -> str:
        """Write as `a -> b` or `a <- b`."""
        arrow = "->" if self.direction == "forward" else "<-"
        return f"{self.edge.producer} {arrow} {self.edge.consumer}"


def capacity(producer_depth: int, consumer_depth: int) -> int:
    """Return how many messages each channel of an edge between two stages holds.

    The producer is at most depth(producer) - depth(consumer) + 1 messages ahead: it has begun the forwards up to
    m + depth(producer) when its backward of m comes next, which is after the consumer's backward of m - 1, and so
    after the consumer's forward of m + depth(consumer) - 2. The same holds on the way back. So many slots never make
    anyone wait; neighbours under lockstep do with one less.

    Args:
        producer_depth: forwards that the producing stage does before its first backward.
        consumer_depth: the consuming stage's, which is never larger.
    """
    ahead = producer_depth - consumer_depth
    return NEIGHBOUR_CAPACITY if ahead <= NEIGHBOUR_CAPACITY else ahead + 1

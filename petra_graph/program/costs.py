"""What every node costs, as values: the planner's whole knowledge of a network.

Operations are what the executor's cells do with a node:

    forward   evaluate without a graph
    reverse   reconstruct the input and differentiate there           reversible nodes that keep nothing
    rerun     evaluate again from a kept input and differentiate      nodes that keep their input
    record    evaluate with a graph that is kept                      nodes that keep graphs
    replay    differentiate the kept graph                            the same
    invert    reconstruct the input alone                             with `rerun`: delayed-reconstructed
    learn     evaluate, take the loss and differentiate both          the head
    update    the optimizer's step
    copy      keep the parameters before it, where a backward will use older ones      (of a profile alone)

A table holds for one micro-batch size, one precision and one optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

from petra_graph.spec.model import Kind

Operation = Literal["forward", "reverse", "rerun", "record", "replay", "invert", "learn", "update", "copy"]


@frozen(kw_only=True)
class Work:
    """One operation of one node on one micro-batch."""

    flops: int = 0
    """Of convolutions, matrix products and attention; a multiply-add counts two."""
    traffic_bytes: int = 0
    """Read and written by kernels, were nothing cached: inputs and outputs of every operation that is no view."""
    working_bytes: int = 0
    """Most bytes alive at once, beyond what was alive before (arguments included there, results here). Where gradients
    of parameters are made, they are made anew, as in a window's first backward."""
    accumulating_bytes: int = 0
    """The same where gradients of parameters are there before, and are added to."""
    kept_bytes: int = 0
    """Alive afterwards beyond arguments and results: a recorded graph."""
    shares: tuple[int | None, ...] = ()
    """For each stream that it returns, the argument whose memory that is; None: memory of its own.

    Arguments are, as far as the operation has them, the output streams, their gradients, the input streams; returned
    are the streams of the other side and then their gradients.
    """


@frozen(kw_only=True)
class NodeCost:
    """One node."""

    kind: Kind
    parameters: int
    """Number of trained values."""
    parameter_bytes: int
    gradient_bytes: int
    """Of the parameters that have a gradient, once a backward has made it."""
    statistics: int
    """Number of floating-point values beside the parameters, such as running statistics."""
    statistics_bytes: int
    """With counters."""
    optimizer_bytes: int
    """State after the first step."""
    input_values: tuple[int, ...]
    """Of each stream that it reads."""
    input_bytes: tuple[int, ...]
    output_bytes: tuple[int, ...]
    work: Mapping[Operation, Work]


@frozen(kw_only=True)
class CostTable:
    """All nodes, for one micro-batch size."""

    micro_batch: int
    """Samples in a micro-batch."""
    sample_bytes: int
    """A micro-batch of samples as they enter the first node: in the data set's own type."""
    target_bytes: int
    nodes: Mapping[str, NodeCost]
    assumptions: tuple[str, ...] = ()
    """What the numbers rest on, for people."""

"""The values that a stage's operations take and return."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, frozen
from torch import Tensor

from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.executor.reconstruct_recompute_stash import HeadResult
from petra_graph.program.channels import Edge


@frozen(kw_only=True)
class BackwardMessage:
    """The message that a consumer sends back along an edge."""

    gradients: EncodedTensors
    activation: EncodedTensors | None
    """The producer's output, for a producer that reconstructs from it; None also where it has gone ahead."""
    weight: float
    """Of the micro-batch's targets: 1 where each of them counts for one (`HeadResult.weight`), by which the gradients are multiplied."""


@frozen(kw_only=True)
class Forwarded:
    """The result of a stage's forward."""

    sent: Mapping[Edge, EncodedTensors]
    result: HeadResult | None
    """From the stage that holds the head."""


@frozen(kw_only=True)
class Replayed:
    """The result of a stage's forward that leaves no trace."""

    sent: Mapping[Edge, EncodedTensors]
    loss: Tensor | None
    """From the stage that holds the head, with its graph, times the share of the targets that count."""


@define(kw_only=True)
class OpenBackward:
    """A split backward between its reconstruction and its parameter gradients, with what it has received."""

    micro_batch: int
    activations: Mapping[Edge, EncodedTensors]
    gradients: Mapping[Edge, BackwardMessage]
    """Of a stage that has not yet differentiated, those that came with the activations."""
    differentiated: bool = False
    weight: float = 1.0
    """As in the messages of the gradients."""

    def received_no_more(self) -> None:
        """Let go of what was received and is used: no cut will ask for it."""
        self.activations = {}
        if self.differentiated:
            self.gradients = {}

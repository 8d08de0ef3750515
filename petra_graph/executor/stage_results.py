"""The values that a stage's operations take and return."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen
from torch import Tensor

from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.executor.runners import HeadResult
from petra_graph.program.channels import Edge


@frozen(kw_only=True)
class BackwardMessage:
    """The message that a consumer sends back along an edge."""

    gradients: EncodedTensors
    activation: EncodedTensors | None
    """The producer's output, for a producer that reconstructs from it."""
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

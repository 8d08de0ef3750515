"""The seconds of each node's operations, timed on a real device, for plans that need not guess."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

from petra_graph.program.costs import Operation
from petra_graph.program.devices import Link
from petra_graph.spec.model import Kind

OPERATIONS: Mapping[Kind, frozenset[Operation]] = {
    "reversible": frozenset({"forward", "reverse", "recompute", "record", "replay", "invert", "update", "copy"}),
    "buffered": frozenset({"forward", "recompute", "record", "replay", "copy", "update"}),
    "head": frozenset({"forward_backward", "update"}),
}
"""The operations that a profile times, by kind of node: all that any method uses."""


@frozen(kw_only=True)
class Profile:
    """One network, one micro-batch size and one precision on one type of device."""

    name: str
    """The name in the specification."""
    device: str
    """The device's name, as users know it."""
    kind: Literal["cpu", "cuda"]
    micro_batch: int
    """Samples."""
    compute: str
    """`precision.compute`."""
    threads: int
    nodes: Mapping[str, Mapping[Operation, float]]
    """By node and operation: seconds a micro-batch (medians); `update`: seconds a step."""
    sizes: Mapping[str, tuple[int, int]]
    """By node: trained values, and bytes of its output; they distinguish networks."""
    outside: float
    """Seconds a micro-batch outside all stages: loading samples, passing messages."""
    link: Link | None
    """Between two of the devices; on the CPU of one machine, through its memory."""

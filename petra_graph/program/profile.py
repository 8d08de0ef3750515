"""What was timed on a real device: seconds of each node's operations, for plans that need not guess."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

from petra_graph.program.costs import Operation
from petra_graph.program.devices import Link
from petra_graph.spec.model import Kind

OPERATIONS: Mapping[Kind, frozenset[Operation]] = {
    "reversible": frozenset({"forward", "reverse", "rerun", "record", "replay", "invert", "update", "copy"}),
    "buffered": frozenset({"forward", "rerun", "record", "replay", "copy", "update"}),
    "head": frozenset({"learn", "update"}),
}
"""What is timed of each kind of node: all that any method asks of it."""


@frozen(kw_only=True)
class Profile:
    """One network, one micro-batch size and one precision on one type of device."""

    name: str
    """The specification's."""
    device: str
    """What it is, for people."""
    kind: Literal["cpu", "cuda"]
    micro_batch: int
    """Samples."""
    compute: str
    """`precision.compute`."""
    threads: int
    nodes: Mapping[str, Mapping[Operation, float]]
    """By node and operation: seconds a micro-batch (medians); `update`: seconds a step."""
    sizes: Mapping[str, tuple[int, int]]
    """By node: trained values, and bytes of its output; what tells networks apart."""
    outside: float
    """Seconds a micro-batch that no stage accounts for: loading samples, handing messages on."""
    link: Link | None
    """Between two of the devices; on one machine's CPU, through its memory."""

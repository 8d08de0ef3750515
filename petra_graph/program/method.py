"""Training methods as points of one space: a schedule, and what each kind of node keeps between its two passes.

    keeps      in the forward               in the backward
    nothing    no graph, nothing kept       reconstruct the input from the output, differentiate there
    input      no graph, input to a FIFO    run again from the stored input, differentiate there
    graph      graph kept                   differentiate the kept graph

A backward that runs or reconstructs uses the current parameters.
"""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from petra_graph.spec.model import Kind, ScheduleName

Keeps = Literal["nothing", "input", "graph"]


@frozen(kw_only=True)
class Method:
    """A training method."""

    name: str
    schedules: tuple[ScheduleName, ...]
    """Schedules under which the method is itself; the first is the default."""
    reversible_keeps: Keeps
    buffered_keeps: Keeps
    source: str
    """Where it is described."""

    def keeps(self, kind: Kind) -> Keeps:
        """Return what a node of `kind` keeps; a head differentiates at once and keeps its input's gradient alone."""
        return self.reversible_keeps if kind == "reversible" else self.buffered_keeps


_ASYNCHRONOUS: tuple[ScheduleName, ...] = ("lockstep", "1f1b", "sequential")

METHODS = {
    method.name: method
    for method in (
        Method(
            name="petra",
            schedules=_ASYNCHRONOUS,
            reversible_keeps="nothing",
            buffered_keeps="input",
            source="PETRA, ICLR 2025, algorithm 1",
        ),
        Method(
            name="backprop",
            schedules=("sequential",),
            reversible_keeps="graph",
            buffered_keeps="graph",
            source="PETRA section 3.1, equations (1) to (3)",
        ),
    )
}

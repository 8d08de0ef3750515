"""The parameters that a late forward or backward has in place of a stage's own, in bytes: `executor.optimizer_weights`, without tensors."""

from __future__ import annotations

from collections.abc import Sequence

from petra_graph.compiler.memory.live_tensors import LiveTensors, Streams
from petra_graph.program.node_costs import Work


class DelayedWeightsMemory:
    """The answers of one stage's optimizer to one of its two questions."""

    def __init__(self, works: Sequence[Work], live: LiveTensors) -> None:
        """Begin without an answer.

        Args:
            works: the cost of one, of each node; none, where the optimizer is not asked.
            live: the tensors of the stage's device.
        """
        self._live = live
        self._bytes = sum(work.kept_bytes for work in works)
        self._working = max((work.working_bytes - work.kept_bytes for work in works), default=0)
        """Bytes beside an answer while it is made."""
        self._held: Streams = []
        self._delay = 0
        """Of the answer that is held, in updates; 0: none is."""

    def hold(self, delay: int) -> None:
        """Hold the answer for a delay in updates, in place of that for another one."""
        if delay != self._delay:
            self.drop()
        if delay and not self._delay and self._bytes:
            self._held, self._delay = self._live.allocate([self._bytes], "parameter_buffer"), delay
            self._live.update_peak(self._working)

    def drop(self) -> None:
        """Free the answer."""
        self._live.drop(self._held, "parameter_buffer")
        self._held, self._delay = [], 0

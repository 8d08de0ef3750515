"""A recorder that needs no GPU: it executes what was recorded anew, and fills everything else that its pool holds with NaN before.

So whatever lives from one operation to the next, outside parameters, statistics, static inputs and static gradients, spoils the
numbers of the run, as it would with graphs that share their memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from petra_graph.blocks import Streams
from petra_graph.measure.tally import LiveBytes


class PoisonedPool:
    """The pool of one device."""

    def __init__(self) -> None:
        self.replays, self.poisoned = 0, 0
        self._made = LiveBytes()

    def record(self, operation: Callable[[], Streams]) -> Callable[[], Streams]:
        kept: list[Streams] = []

        def replay() -> Streams:
            kept[:] = [self.execute(operation)]  # a graph has its outputs until it is replayed
            return kept[0]

        return replay

    def execute(self, operation: Callable[[], Streams]) -> Streams:
        for storage in [alive() for alive in self._made._counted.values()]:
            if storage is not None:
                torch.empty(0, dtype=torch.uint8).set_(storage).fill_(255)  # NaN in every floating-point type
                self.poisoned += 1
        with LiveBytes() as self._made:
            outputs = operation()
        self.replays += 1
        return outputs

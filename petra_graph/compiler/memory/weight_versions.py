"""One stage's parameter versions in bytes: what `executor.weight_versions` copies, and when it forgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from petra_graph.compiler.memory.live_tensors import LiveTensors
from petra_graph.program.costs import NodeCost
from petra_graph.program.stage_program import StageProgram


class WeightVersions:
    """How many copies of one stage's parameters there are, and of which versions."""

    def __init__(self, program: StageProgram, nodes: Mapping[str, NodeCost], ledger: LiveTensors) -> None:
        self._ledger = ledger
        self._bytes = sum(
            nodes[name].parameter_bytes
            for segment in program.segments
            if segment.backward == "stored" and segment.kind != "head"
            for name in segment.nodes
        )
        self._current = 0
        self._copies: set[int] = set()
        self._seen: dict[int, int] = {}
        self._users: Counter[int] = Counter()

    def begin(self, micro_batch: int) -> None:
        """Note that a forward sees the current version."""
        self._seen[micro_batch] = self._current
        self._users[self._current] += 1

    def end(self, micro_batch: int) -> None:
        """Forget a micro-batch after its backward, and its version with its last user."""
        version = self._seen.pop(micro_batch)
        self._users[version] -= 1
        if not self._users[version]:
            del self._users[version]
            self._copies.discard(version)
            self._count()

    def before_step(self) -> None:
        """Copy the current version if somebody still needs it."""
        if self._users[self._current]:
            self.keep()
        self._current += 1

    def keep(self) -> None:
        """Copy the current version."""
        self._copies.add(self._current)
        self._count()

    def stale(self, micro_batch: int) -> bool:
        """Whether an update has come since the micro-batch's forward."""
        return self._seen[micro_batch] != self._current

    def _count(self) -> None:
        self._ledger.fixed["parameter_buffer"] = len(self._copies) * self._bytes

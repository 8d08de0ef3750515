"""Parameters of all stages as they were after given numbers of updates.

A version is copied when an update is about to overwrite it while a request for it is open. The copy is dropped when the
last request for it is closed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from petra_graph.executor.stage import StageExecutor
from petra_graph.executor.weight_versions import Parameters, copied_parameters
from petra_graph.program.clock import Versions


class Snapshots:
    """Versions of all stages since a drain."""

    def __init__(self, executors: Sequence[StageExecutor]) -> None:
        self._executors = executors
        self._updates = [0] * len(executors)
        self._requests: Counter[tuple[int, int]] = Counter()
        """Open requests by stage and version."""
        self._copies: dict[tuple[int, int], Parameters] = {}

    def request(self, versions: Versions) -> None:
        """Request one version of each stage, before any of them is overwritten."""
        self._requests.update(enumerate(versions))

    def release(self, versions: Versions) -> None:
        """Close a request."""
        for key in enumerate(versions):
            self._requests[key] -= 1
            if not self._requests[key]:
                del self._requests[key]
                self._copies.pop(key, None)

    def before_update(self, stage: int) -> None:
        """Copy a stage's parameters where their version is requested, since the update overwrites them."""
        key = stage, self._updates[stage]
        if key in self._requests:
            self._copies[key] = copied_parameters(self._executors[stage].modules)

    def after_update(self, stage: int) -> None:
        """Count a stage's update."""
        self._updates[stage] += 1

    def reached(self, versions: Versions) -> bool:
        """Return whether every stage has made at least as many updates."""
        return all(made >= version for made, version in zip(self._updates, versions, strict=True))

    def at(self, versions: Versions) -> list[Parameters]:
        """Return each stage's parameters: a copy, or the modules' own until their next update."""
        return [self._copies.get(key) or self._live(key[0]) for key in enumerate(versions)]

    def _live(self, stage: int) -> Parameters:
        return {name: dict(module.named_parameters()) for name, module in self._executors[stage].modules.items()}

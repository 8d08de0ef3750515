"""Parameters of all stages as they were after given numbers of updates.

A version is copied when an update is about to overwrite it, if somebody has asked for it, and forgotten with the last
who did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from petra_graph.executor.stage import StageExecutor
from petra_graph.executor.weight_versions import Parameters, copied
from petra_graph.program.clock import Versions


class Snapshots:
    """Versions of all stages since a drain."""

    def __init__(self, executors: Sequence[StageExecutor]) -> None:
        self._executors = executors
        self._updates = [0] * len(executors)
        self._wanted: Counter[tuple[int, int]] = Counter()
        self._copies: dict[tuple[int, int], Parameters] = {}

    def want(self, versions: Versions) -> None:
        """Ask for one version of each stage, none of them overwritten yet."""
        self._wanted.update(enumerate(versions))

    def release(self, versions: Versions) -> None:
        """Take the question back."""
        for stage_version in enumerate(versions):
            self._wanted[stage_version] -= 1
            if not self._wanted[stage_version]:
                del self._wanted[stage_version]
                self._copies.pop(stage_version, None)

    def before_update(self, stage: int) -> None:
        """Copy a stage's parameters if somebody wants them: they change next."""
        now = stage, self._updates[stage]
        if now in self._wanted:
            self._copies[now] = copied(self._executors[stage].modules)

    def updated(self, stage: int) -> None:
        """Count an update."""
        self._updates[stage] += 1

    def reached(self, versions: Versions) -> bool:
        """Whether every stage has come as far."""
        return all(made >= asked for made, asked in zip(self._updates, versions, strict=True))

    def at(self, versions: Versions) -> list[Parameters]:
        """Return each stage's parameters: a copy, or what the modules hold until their next update."""
        return [self._copies.get(key) or self._live(key[0]) for key in enumerate(versions)]

    def _live(self, stage: int) -> Parameters:
        return {name: dict(module.named_parameters()) for name, module in self._executors[stage].modules.items()}

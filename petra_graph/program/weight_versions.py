"""Versions of a stage's parameters that micro-batches in flight use: when to copy one, and when to drop the copy.

A copy is made for each distinct version and only when an update is about to overwrite one that is in use, so a stage
holds at most ceil(staleness / k) copies, and none where the pipeline flushes first. PipeDream calls this weight stashing
(Harlap et al. 2018, section 3.3). The executor copies tensors, the memory model counts bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Copy = TypeVar("Copy")


class WeightVersions(Generic[Copy]):
    """One stage's parameters over time; versions count its updates."""

    def __init__(self, copy: Callable[[], Copy]) -> None:
        self.current = 0
        self.copies: dict[int, Copy] = {}
        self.version_of: dict[int, int] = {}
        """Of the micro-batches in flight."""
        self._copy = copy

    def begin(self, micro_batch: int) -> None:
        """Record that a forward uses the current version."""
        self.version_of[micro_batch] = self.current

    def end(self, micro_batch: int) -> Copy | None:
        """Forget a micro-batch after its backward; return the copy that was dropped with its last user, if any."""
        version = self.version_of.pop(micro_batch)
        return None if version in self.version_of.values() else self.copies.pop(version, None)

    def before_step(self) -> None:
        """Copy the current version if a micro-batch in flight uses it: the parameters change next."""
        if self.current in self.version_of.values() and self.current not in self.copies:
            self.copies[self.current] = self._copy()
        self.current += 1

    def older(self, micro_batch: int) -> Copy | None:
        """Return the copy that a micro-batch's forward used; None where that version is the current one."""
        version = self.version_of[micro_batch]
        return None if version == self.current else self.copies[version]

    def copy_for(self, micro_batch: int) -> Copy:
        """Return a copy of the version that a micro-batch's forward uses, which no update changes."""
        version = self.version_of[micro_batch]
        if version == self.current and version not in self.copies:
            self.copies[version] = self._copy()
        return self.copies[version]

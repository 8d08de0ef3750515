"""The other processes of a run, as one of them watches them: which has ended, which is silent, and what it did last.

A process of the same machine is seen to end at once. Of one on another machine the heartbeats stop, which the rank before it notices.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from typing import Any

import torch.distributed as dist

from petra_graph.runtime.control.failure import Failure, stages_text
from petra_graph.runtime.control.run_store import RunStore
from petra_graph.runtime.control.waiting import AwakeTime
from petra_graph.runtime.control.world import World

_SILENCE_SECONDS = 30.0
_KILLED = "it was killed: by a signal, or by the system for want of memory"
_SILENT = "it is stopped, or its machine is: see whether that answers, and what its log says"


class OtherProcesses:
    """What one process's watchdog asks about the others, in its own thread."""

    def __init__(self, world: World, store: RunStore, awake: AwakeTime) -> None:
        self._world, self._store, self._awake = world, store, awake
        self.stages: tuple[tuple[int, ...], ...] = ((),) * world.size
        """Indices of each rank's stages, once they are known."""
        self._ranks = {descriptor: rank for rank in range(world.size) if (descriptor := self._descriptor(rank))}
        self._ends = select.poll()
        for descriptor in self._ranks:
            self._ends.register(descriptor, select.POLLIN)
        self._latest_heartbeat: tuple[float, Any] = (time.monotonic(), None)

    def wait_for_ends(self, seconds: float) -> list[int]:
        """Return the ranks of this machine that have ended; wait some seconds for one before returning no rank."""
        return [self._ranks[descriptor] for descriptor, _ in self._ends.poll(seconds * 1000)]

    def has_ended(self, rank: int, seconds: float) -> bool:
        """Whether a rank of this machine ends within some seconds."""
        descriptor = next((descriptor for descriptor, other in self._ranks.items() if other == rank), None)
        return descriptor is not None and bool(select.select([descriptor], [], [], seconds)[0])

    def dead(self, rank: int) -> Failure:
        """Return the failure of a run of which a process has ended."""
        return self._lost(rank, "has gone without a word", _KILLED)

    def silent(self) -> Failure | None:
        """Return the failure of a run whose next rank has no heartbeat any more; every rank is the next one of some rank."""
        other = (self._world.rank + 1) % self._world.size
        peer_status = self._store.get(f"status/{other}")
        beat = None if peer_status is None else peer_status["at"]
        if beat != self._latest_heartbeat[1]:
            self._latest_heartbeat = (time.monotonic(), beat)
            return None
        if self._awake.since(self._latest_heartbeat[0]) <= _SILENCE_SECONDS:
            return None
        return self._lost(other, f"has been silent for {_SILENCE_SECONDS:g} s", _SILENT)

    def _lost(self, rank: int, how: str, hint: str) -> Failure:
        process = self._world.neighbours[rank]
        peer_status = None
        with suppress(dist.DistError, RuntimeError):  # The store may have died with the process.
            peer_status = self._store.get(f"status/{rank}")
        did = peer_status["status"] if peer_status else None
        stages = stages_text(self.stages[rank])
        message = f"rank {rank} ({stages}; process {process.process} on {process.host}) {how}"
        if peer_status is not None and did is not None:
            before = max(0.0, time.time() - peer_status["at"])
            message += f"; last heard of {before:.1f} s ago in {did['text']}"
        return Failure(rank=rank, lost=True, problems=((message, hint),), where=did)

    def _descriptor(self, rank: int) -> int | None:
        """Return a descriptor that becomes readable when another process of this machine ends."""
        world = self._world
        if rank == world.rank or not world.share_machine(rank):
            return None
        with suppress(OSError):
            return os.pidfd_open(world.neighbours[rank].process)
        return None

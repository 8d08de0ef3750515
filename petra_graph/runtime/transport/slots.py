"""Preallocated memory for messages: slots that become free when the last tensor over them is gone.

Decision: a received message is read in its slot. Its tensors share one lease on the slot, and the slot is free when the
last tensor is gone, whatever held it: an operation, an autograd graph, a message that waits to be sent back. So no rule
about the lifetime of messages can be wrong; at worst a slot stays taken for longer.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Callable

import torch
from torch import Tensor


class Slots:
    """Slots of equal size in one piece of memory."""

    def __init__(self, memory: mmap.mmap, count: int, slot_bytes: int) -> None:
        self.count = count
        self.slot_bytes = slot_bytes
        self._memory = memory
        self._bytes = ctypes.c_uint8 * max(1, slot_bytes)

    @classmethod
    def private(cls, count: int, slot_bytes: int) -> Slots:
        """Allocate slots in memory of this process alone."""
        return cls(mmap.mmap(-1, total_bytes(count, slot_bytes)), count, slot_bytes)

    def flat(self, slot: int) -> Tensor:
        """Return a slot's bytes, uint8, to be written."""
        return torch.frombuffer(self._at(slot), dtype=torch.uint8)

    def leased(self, slot: int, release: Callable[[int], object]) -> Tensor:
        """Return a slot's bytes, uint8, to be read; `release(slot)` is called when all tensors over them are gone."""
        lease = self._at(slot)
        weakref.finalize(lease, release, slot).atexit = False
        return torch.frombuffer(lease, dtype=torch.uint8)

    def _at(self, slot: int) -> ctypes.Array[ctypes.c_uint8]:
        return self._bytes.from_buffer(self._memory, slot * self.slot_bytes)


def total_bytes(count: int, slot_bytes: int) -> int:
    """Return the bytes of `count` slots, at least one."""
    return max(1, count * slot_bytes)

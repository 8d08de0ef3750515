"""Bytes of live tensors, counted at dispatch level, exactly, on the CPU and the meta device alike.

The outputs of every operation pass here; a storage counts from its first appearance until it is freed. Memory that a kernel
allocates and frees inside itself is not counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages that come to life inside the context."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._counted: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count the new storages of its result."""
        before = {id(storage) for storage in storages((args, kwargs))}
        result = self.call(func, args, kwargs or {})
        for storage in storages(result):
            if id(storage) not in before:
                self.count(storage)
        return result

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation."""
        return func(*args, **kwargs)

    def count(self, storage: torch.UntypedStorage) -> None:
        """Count a storage from now on, unless it counts already."""
        key = id(storage)
        if key in self._counted and self._counted[key]() is storage:
            return
        size = storage.nbytes()
        owner = self.grow(size)

        def freed(_: object) -> None:
            self._counted.pop(key, None)
            self.shrink(size, owner)

        self._counted[key] = weakref.ref(storage, freed)

    def grow(self, size: int) -> int:
        """Add bytes; return the number of their owner."""
        self.live += size
        self.peak = max(self.peak, self.live)
        return 0

    def shrink(self, size: int, owner: int) -> None:
        """Take the bytes of an owner away."""
        self.live -= size


def storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    """Yield the storage of every tensor in nested tuples, lists and dictionaries, as often as it appears."""
    return (tensor.untyped_storage() for tensor in tensors(tree))


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in nested tuples, lists and dictionaries: the arguments and results of operations."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from tensors(part)
    elif isinstance(tree, dict):
        for part in tree.values():
            yield from tensors(part)


def distinct_bytes(of: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the memory of tensors, shared memory counted once."""
    found = {id(storage): storage for storage in storages(tuple(of))}
    return sum(storage.nbytes() for storage in found.values())

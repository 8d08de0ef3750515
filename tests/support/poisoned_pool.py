"""A recorder that needs no GPU: it executes what was recorded anew, and fills everything else that its pool holds with NaN before.

So whatever lives from one operation to the next, outside parameters, statistics, static inputs and static gradients, spoils the
numbers of the run, as it would with graphs that share their memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from petra_graph.blocks import Streams


class _Made(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the memory of all tensors that operations make."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(one.untyped_storage()) for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
        returned = func(*args, **(kwargs or {}))
        for one in tree_leaves(returned):
            if isinstance(one, torch.Tensor) and id(one.untyped_storage()) not in given:
                own = StorageWeakRef(one.untyped_storage())  # type: ignore[no-untyped-call]
                self.memory[own.cdata] = own
        return returned


class PoisonedPool:
    """The pool of one device."""

    def __init__(self) -> None:
        self.replays, self.poisoned = 0, 0
        self._memory: list[StorageWeakRef] = []

    def record(self, operation: Callable[[], Streams]) -> Callable[[], Streams]:
        kept: list[Streams] = []

        def replay() -> Streams:
            kept[:] = [self.execute(operation)]  # a graph has its outputs until it is replayed
            return kept[0]

        return replay

    def execute(self, operation: Callable[[], Streams]) -> Streams:
        for own in self._memory:
            storage = torch.UntypedStorage._new_with_weak_ptr(own.cdata)
            if storage is not None:
                torch.empty(0, dtype=torch.uint8).set_(storage).fill_(255)  # NaN in every floating-point type
                self.poisoned += 1
        with _Made() as made:
            outputs = operation()
        self._memory = list(made.memory.values())
        self.replays += 1
        return outputs

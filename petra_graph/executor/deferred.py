"""When the host reads results from devices.

Reading a number from a GPU makes the host wait for all work that it has queued, and leaves the GPU without work meanwhile. So
numbers that a run looks at (losses, metrics, norms, magnitudes) stay on their device, and are read together every few
micro-batches. On a processor there is nothing to wait for, and each is read at once.

    device       losses and metrics are read                    a step whose gradient is not finite
    processor    every micro-batch                              is refused before it changes the parameters
    GPU          every `run.log_every` micro-batches, before    gets a gradient of zeros, so that parameters stay finite; the
                 every checkpoint, and at the end of an epoch   run fails at the next reading, which names the first one
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from attrs import define, field
from torch import Tensor

MOST = 1000
"""Micro-batches between two readings, at most: the numbers of each stay in memory."""
Key = TypeVar("Key")


def read_interval(device: torch.device, log_every: int) -> int:
    """Return the number of micro-batches after which results on a device are read."""
    return 1 if device.type == "cpu" else min(log_every, MOST)


def floats(values: Sequence[Tensor | float]) -> list[float]:
    """Return scalars of one device and type as numbers, read together."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    if not tensors or len(tensors) < len(values):
        return [float(value) for value in values]
    return [float(value) for value in torch.stack([tensor.detach().reshape(()) for tensor in tensors]).tolist()]


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has done all that is queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@define(eq=False)
class DeferredCheck(Generic[Key]):
    """Scalars that a condition must hold for, read together."""

    holds: Callable[[float], bool]
    _pending: list[tuple[Key, Tensor | float]] = field(factory=list, init=False)

    def __bool__(self) -> bool:
        """Whether some wait to be read."""
        return bool(self._pending)

    def add(self, key: Key, value: Tensor | float) -> None:
        """Take one more, without reading it."""
        self._pending.append((key, value))

    def read(self) -> tuple[Key, float] | None:
        """Return the first scalar since the last reading for which the condition does not hold."""
        pending, self._pending = self._pending, []
        found = zip((key for key, _ in pending), floats([value for _, value in pending]), strict=True)
        return next(((key, value) for key, value in found if not self.holds(value)), None)

"""The two ends of a channel, whatever carries its messages; and the channel within a process, a queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from attrs import evolve
from torch import Tensor

from petra_graph.executor.encoded_tensors import EncodedTensor, EncodedTensors, payload
from petra_graph.program.message_layout import MessageLayout

Form = tuple[MessageLayout, int]
"""The layout and the number of samples of one message."""


class Sender(Protocol):
    """The sending end of a channel."""

    def begin(self, messages: Iterable[Form]) -> None:
        """Send messages of these forms from now on."""
        ...

    def has_room(self) -> bool:
        """Whether a message can be sent."""
        ...

    def send(self, message: EncodedTensors) -> None: ...


class Receiver(Protocol):
    """The receiving end of a channel."""

    leases: bool
    """Messages lie in slots, of which there are few; a slot is taken for as long as a tensor over it lives."""

    def begin(self, messages: Iterable[Form]) -> None:
        """Expect messages of these forms."""
        ...

    def ready(self) -> bool:
        """Whether `receive` would return at once."""
        ...

    def receive(self) -> EncodedTensors:
        """Return the oldest message."""
        ...


class LocalChannel:
    """Both ends of a channel within a process."""

    leases = False

    def __init__(self) -> None:
        queue: deque[EncodedTensors] = deque()
        # The queue's own methods, since a stage asks before each operation.
        self.ready: Callable[[], bool] = queue.__len__  # type: ignore[assignment]
        self.send, self.receive = queue.append, queue.popleft

    def begin(self, messages: Iterable[Form]) -> None:
        """Accept messages of any form."""

    def has_room(self) -> bool:
        return True


def moved(carried: EncodedTensors, device: torch.device) -> EncodedTensors:
    """Bring streams to `device`, in their layout and as they are encoded; those that are there are not copied.

    A copy to a GPU is ordered with the GPU's work; one to the CPU must have ended before the CPU reads it. Samples and messages of other
    processes go to a GPU through pinned memory, which torch keeps: the host would wait for a copy from any other.
    """
    if device.type == "cuda":
        carried = tuple(map(_pinned, carried))
    return tuple(value.to(device, non_blocking=device.type == "cuda") for value in carried)


def _pinned(value: Tensor | EncodedTensor) -> Tensor | EncodedTensor:
    held = payload(value)
    if held.device.type != "cpu":
        return value
    # A scale of four bytes is not worth it.
    return evolve(value, payload=held.pin_memory()) if isinstance(value, EncodedTensor) else held.pin_memory()

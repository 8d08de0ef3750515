"""A wire: messages leave in the order in which they came.

Order comes from the schedule alone; a channel only says whether the next message is there.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import torch

from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.executor.stage import BackwardMessage

Message = TypeVar("Message")


class LocalChannel(Generic[Message]):
    """A queue inside one process."""

    def __init__(self) -> None:
        self._queue: deque[Message] = deque()

    def send(self, message: Message) -> None:
        """Append a message."""
        self._queue.append(message)

    def ready(self) -> bool:
        """Whether `receive` would return at once."""
        return bool(self._queue)

    def receive(self) -> Message:
        """Take the oldest message."""
        return self._queue.popleft()


def moved(carried: EncodedTensors, device: torch.device) -> EncodedTensors:
    """Bring streams to `device`, in their layout and as they are encoded; those that are there are not copied.

    A copy to a GPU is ordered with the GPU's work; one to the CPU must have ended before the CPU reads it.
    """
    return tuple(value.to(device, non_blocking=device.type == "cuda") for value in carried)


def moved_back(message: BackwardMessage, device: torch.device) -> BackwardMessage:
    """Bring a backward message to `device`."""
    activation = None if message.activation is None else moved(message.activation, device)
    return BackwardMessage(gradients=moved(message.gradients, device), activation=activation)

"""A channel: its two ends, the queue within a process, and slots, preallocated memory for messages between processes.

Decision: a received message is copied out of its slot, which is free at once. So nobody has to know for how long a block, a hook or a
reference cycle keeps what a stage has received; a message costs its bytes once more, on the receiver's side.
"""

from __future__ import annotations

import ctypes
import mmap
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from attrs import evolve
from torch import Tensor

from petra_graph.executor.encoded import EncodedTensor, EncodedTensors, payload
from petra_graph.program.message_layout import Extent, MessageLayout, TensorLayout

Form = tuple[MessageLayout, int]
"""The layout and the number of samples of one message."""


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
        """Return a slot's bytes, uint8."""
        return torch.frombuffer(self._bytes.from_buffer(self._memory, slot * self.slot_bytes), dtype=torch.uint8)


def total_bytes(count: int, slot_bytes: int) -> int:
    """Return the bytes of `count` slots, at least one."""
    return max(1, count * slot_bytes)


def write_message(layout: MessageLayout, memory: Tensor, encoded: EncodedTensors) -> int:
    """Copy a message into `memory`, uint8 [bytes], and return how many bytes it takes."""
    pairs = zip(layout.tensors, encoded, strict=True)
    samples = next((payload(value).shape[0] for tensor, value in pairs if tensor.per_sample), 0)
    extents, size = layout.extents(samples)
    for value, (place, scale) in zip(encoded, extents, strict=True):
        _view(place, memory).copy_(payload(value))
        if isinstance(value, EncodedTensor) and value.scale is not None:
            _view(scale, memory).copy_(value.scale)
    return size


def read_message(layout: MessageLayout, memory: Tensor, samples: int) -> EncodedTensors:
    """Return a copy of the message in `memory`, uint8 [bytes].

    Tensor by tensor: as views of one copy, the first that is done with would keep its memory until the last is.
    """
    extents, _ = layout.extents(samples)
    return tuple(
        _value(tensor, _view(place, memory).clone(), _view(scale, memory).clone() if tensor.scaled else None)
        for tensor, (place, scale) in zip(layout.tensors, extents, strict=True)
    )


def _view(extent: Extent, memory: Tensor) -> Tensor:
    dtype: torch.dtype = getattr(torch, extent.dtype)
    return memory[extent.offset : extent.end].view(dtype).as_strided(extent.shape, extent.strides)


def _value(tensor: TensorLayout, elements: Tensor, scale: Tensor | None) -> Tensor | EncodedTensor:
    if tensor.stored == tensor.dtype:
        return elements
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    return EncodedTensor(payload=elements, scale=scale, dtype=dtype)


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

    def __init__(self) -> None:
        queue: deque[EncodedTensors] = deque()
        # The queue's own methods, since a stage asks before each operation.
        self.ready: Callable[[], bool] = queue.__len__  # type: ignore[assignment]
        self.send, self.receive = queue.append, queue.popleft

    def begin(self, messages: Iterable[Form]) -> None:
        """Accept messages of any form."""

    def has_room(self) -> bool:
        return True


class PutBack:
    """The receiving end of a channel, with messages that were in flight when the run was interrupted: they are received first."""

    def __init__(self, end: Receiver) -> None:
        self._end = end
        self.messages: deque[EncodedTensors] = deque()

    def begin(self, messages: Iterable[Form]) -> None:
        self._end.begin(messages)

    def ready(self) -> bool:
        return bool(self.messages) or self._end.ready()

    def receive(self) -> EncodedTensors:
        return self.messages.popleft() if self.messages else self._end.receive()


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

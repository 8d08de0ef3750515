"""A channel between two processes of one machine: slots in shared memory, written by the sender and copied by the receiver.

    sender                                  receiver
    takes a free slot, writes          |
    its number into the pipe `filled` --->  reads the number, copies the message
    the number is free again          <---  number into the pipe `freed`

A pipe wakes its reader without spinning, and the system orders memory around it.

Decision: neither the memory nor the pipes have names. The receiver makes them and publishes its process and
descriptors; the sender opens them as /proc/PID/fd/N. So they are gone with the last of the two processes, however it
ends: nothing can be left in /dev/shm, and its size limit does not apply.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from petra_graph.errors import RunFailed
from petra_graph.executor.encoded import EncodedTensors
from petra_graph.runtime.channels import Form, Slots, read_message, total_bytes, write_message
from petra_graph.runtime.waiting import Waker

_NUMBER_BYTES = 2
_PIPE = os.O_NONBLOCK | os.O_CLOEXEC
Address = Mapping[str, int]
"""The receiver's process, and the descriptors of its memory and pipes there."""


class SharedMemoryReceiver:
    """The receiving end, which owns the memory."""

    def __init__(self, count: int, slot_bytes: int, waker: Waker) -> None:
        size = total_bytes(count, slot_bytes)
        what = f"{count} messages of {slot_bytes} bytes"
        try:
            self._memory = os.memfd_create("petra-graph channel", os.MFD_CLOEXEC)
            os.posix_fallocate(self._memory, 0, size)
            self._slots = Slots(mmap.mmap(self._memory, size), count, slot_bytes)
            self._filled, self._filling = os.pipe2(_PIPE)
            self._to_free, self._freeing = os.pipe2(_PIPE)
        except OSError as error:
            raise RunFailed(f"no shared memory for {what}: {error.strerror or error}") from error
        self._numbers: deque[int] = deque()
        self._forms: Iterator[Form] = iter(())
        waker.attach(self._filled, self._drain)

    @property
    def address(self) -> Address:
        """What the sender needs to open the other end."""
        return {
            "process": os.getpid(),
            "memory": self._memory,
            "filling": self._filling,
            "to_free": self._to_free,
            "count": self._slots.count,
            "slot_bytes": self._slots.slot_bytes,
        }

    def begin(self, messages: Iterable[Form]) -> None:
        self._forms = iter(messages)

    def ready(self) -> bool:
        if not self._numbers:
            self._drain()
        return bool(self._numbers)

    def receive(self) -> EncodedTensors:
        """Return a copy of the oldest message, and free its slot."""
        slot = self._numbers.popleft()
        layout, samples = next(self._forms)
        message = read_message(layout, self._slots.flat(slot), samples)
        _write_number(self._freeing, slot)
        return message

    def _drain(self) -> None:
        self._numbers.extend(_numbers(self._filled))


class SharedMemorySender:
    """The sending end."""

    def __init__(self, address: Address, waker: Waker) -> None:
        def opened(name: str, flags: int) -> int:
            return os.open(f"/proc/{address['process']}/fd/{address[name]}", flags | os.O_CLOEXEC)

        count, slot_bytes = address["count"], address["slot_bytes"]
        memory = opened("memory", os.O_RDWR)
        self._slots = Slots(mmap.mmap(memory, total_bytes(count, slot_bytes)), count, slot_bytes)
        os.close(memory)
        self._flat: list[Tensor] = [self._slots.flat(slot) for slot in range(count)]
        self._filling = opened("filling", os.O_WRONLY | os.O_NONBLOCK)
        self._freed = opened("to_free", os.O_RDONLY | os.O_NONBLOCK)
        self._free: deque[int] = deque(range(count))
        self._forms: Iterator[Form] = iter(())
        waker.attach(self._freed, self._drain)

    def begin(self, messages: Iterable[Form]) -> None:
        self._forms = iter(messages)

    def has_room(self) -> bool:
        if not self._free:
            self._drain()
        return bool(self._free)

    def send(self, message: EncodedTensors) -> None:
        """Copy a message into a free slot."""
        slot = self._free.popleft()
        with torch.no_grad():
            write_message(next(self._forms)[0], self._flat[slot], message)
        _write_number(self._filling, slot)

    def _drain(self) -> None:
        self._free.extend(_numbers(self._freed))


def _numbers(pipe: int) -> Iterator[int]:
    """Yield all numbers in a pipe; each was written whole."""
    try:
        found = os.read(pipe, 65536)
    except BlockingIOError:
        return
    for start in range(0, len(found), _NUMBER_BYTES):
        yield int.from_bytes(found[start : start + _NUMBER_BYTES], "little")


def _write_number(pipe: int, number: int) -> None:
    try:
        os.write(pipe, number.to_bytes(_NUMBER_BYTES, "little"))
    except BrokenPipeError:
        return  # The other process has died, which the watchdog reports.

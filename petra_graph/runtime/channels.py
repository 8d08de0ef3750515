"""A channel: its two ends, and what carries its messages: a queue within a process, or slots, preallocated memory.

    sender                                       receiver
    writes the message into the next slot   |
    tells that it is there                 --->  copies the message out
    the slot is free again                 <---  tells that it has

    shared memory    two processes of a machine: both see the slots, and a byte through a pipe tells of a message, or of room
    process group    gloo, between machines: each end has slots of its own, and a thread that waits for the other end in its place

Messages are received in their order, so both ends take the slots in turn, and need to count alone.

Decision: a received message is copied out of its slot, which is free at once. So nobody has to know for how long a block, a hook or a
reference cycle keeps what a stage has received; a message costs its bytes once more, on the receiver's side.

Decision: neither shared memory nor its pipes have names. The receiver makes them and publishes its process and descriptors; the sender
opens them as /proc/PID/fd/N. So they are gone with the last of the two processes, however it ends: nothing can be left in /dev/shm, and
its size limit does not apply. A pipe wakes its reader without spinning, and the system orders memory around it.

Decision: through a process group, tensors of a GPU are copied to and from host memory at the two ends; the channel's thread waits for the
other end, never the stage.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from petra_graph.errors import RunFailed
from petra_graph.executor.encoded import EncodedTensor, EncodedTensors, each, payload
from petra_graph.program.channels import Extent, MessageLayout
from petra_graph.runtime.system import Waker

Form = tuple[MessageLayout, int]
"""The layout and the number of samples of one message."""
Lost = Callable[[Exception], None]
"""Called, from any thread, with what torch raised where the other end of a channel does not answer."""


class End(Protocol):
    """One end of a channel."""

    def begin(self, messages: Iterable[Form]) -> None:
        """Send, or expect, messages of these forms from now on."""
        ...

    def ready(self) -> bool:
        """Whether a message is there, or room for one."""
        ...


class Sender(End, Protocol):
    def send(self, message: EncodedTensors) -> None: ...


class Receiver(End, Protocol):
    def receive(self) -> EncodedTensors:
        """Return the oldest message."""
        ...


class LocalChannel:
    """Both ends of a channel within a process; there is always room."""

    def __init__(self) -> None:
        queue: deque[EncodedTensors] = deque()
        # The queue's own methods, since a stage asks before each operation.
        self.ready: Callable[[], bool] = queue.__len__  # type: ignore[assignment]
        self.send, self.receive = queue.append, queue.popleft

    def begin(self, messages: Iterable[Form]) -> None:
        """Accept messages of any form."""


class PutBack:
    """The receiving end of a channel, with messages that were in flight when the run was interrupted: they are received first."""

    def __init__(self, end: Receiver) -> None:
        self._end, self.begin = end, end.begin
        self.messages: deque[EncodedTensors] = deque()

    def ready(self) -> bool:
        return bool(self.messages) or self._end.ready()

    def receive(self) -> EncodedTensors:
        return self.messages.popleft() if self.messages else self._end.receive()


# --- messages in memory -----------------------------------------------------------------------------------------------


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
    found: list[Tensor | EncodedTensor] = []
    for tensor, (place, scale) in zip(layout.tensors, layout.extents(samples)[0], strict=True):
        elements = _view(place, memory).clone()
        if tensor.stored == tensor.dtype:
            found.append(elements)
        else:
            by = _view(scale, memory).clone() if tensor.scaled else None
            found.append(EncodedTensor(payload=elements, scale=by, dtype=getattr(torch, tensor.dtype)))
    return tuple(found)


def _view(extent: Extent, memory: Tensor) -> Tensor:
    dtype: torch.dtype = getattr(torch, extent.dtype)
    return memory[extent.offset : extent.end].view(dtype).as_strided(extent.shape, extent.strides)


def moved(carried: EncodedTensors, device: torch.device) -> EncodedTensors:
    """Bring streams to `device`, in their layout and as they are encoded; those that are there are not copied.

    A copy to a GPU is ordered with the GPU's work; one to the CPU must have ended before the CPU reads it. Samples and messages of other
    processes go to a GPU through pinned memory, which torch keeps: the host would wait for a copy from any other.
    """
    if device.type != "cuda":
        return each(lambda one: one.to(device), carried)

    def to_gpu(one: Tensor) -> Tensor:
        return (one.pin_memory() if one.device.type == "cpu" else one).to(device, non_blocking=True)

    return each(to_gpu, carried)


# --- slots ------------------------------------------------------------------------------------------------------------

_PIPE = os.O_NONBLOCK | os.O_CLOEXEC


def slots(count: int, slot_bytes: int, memory: mmap.mmap | None = None) -> Sequence[Tensor]:
    """Return slots, each uint8 [slot_bytes], in this memory, or in some of this process alone."""
    size = count * slot_bytes
    flat = torch.empty(size, dtype=torch.uint8) if memory is None else torch.frombuffer(memory, dtype=torch.uint8)
    return flat.view(count, slot_bytes).unbind()


class _SlotEnd:
    """What both ends have: the slots in turn, and how many of them are this end's to use."""

    def __init__(
        self, slots: Sequence[Tensor], hears: int, waker: Waker, hand_over: Callable[[Tensor], object], own: int = 0
    ) -> None:
        """Begin with `own` slots; a byte in the pipe `hears` gives one more, and `hand_over` gives one to the other end."""
        self._slots, self._own, self._hears, self._hand_over = cycle(slots), own, hears, hand_over
        self._forms: Iterator[Form] = iter(())
        waker.attach(hears, self._hear)

    def begin(self, messages: Iterable[Form]) -> None:
        self._forms = iter(messages)

    def ready(self) -> bool:
        if not self._own:
            self._hear()
        return self._own > 0

    def _hear(self) -> None:
        with suppress(BlockingIOError):  # nothing is new
            self._own += len(os.read(self._hears, 65536))


class SlotSender(_SlotEnd):
    """The sending end of a channel with slots, which are all its own at first."""

    def send(self, message: EncodedTensors) -> None:
        """Copy a message into the next slot, which is free."""
        slot = next(self._slots)
        with torch.no_grad():
            size = write_message(next(self._forms)[0], slot, message)
        self._own -= 1
        self._hand_over(slot[:size])


class SlotReceiver(_SlotEnd):
    """The receiving end of a channel with slots, none of which has a message at first."""

    def receive(self) -> EncodedTensors:
        """Return a copy of the oldest message, and give its slot back."""
        (layout, samples), slot = next(self._forms), next(self._slots)
        message = read_message(layout, slot, samples)
        self._own -= 1
        self._hand_over(slot)
        return message


# --- shared memory ----------------------------------------------------------------------------------------------------

Address = Mapping[str, int]
"""The receiver's process, and the descriptors of its memory and pipes there."""


def shared_memory_receiver(count: int, slot_bytes: int, waker: Waker) -> tuple[SlotReceiver, Address]:
    """Make shared memory; return the receiving end in it, and what the sender needs to open the other end."""
    try:
        memory = os.memfd_create("petra-graph channel", os.MFD_CLOEXEC)
        os.posix_fallocate(memory, 0, count * slot_bytes)
        made = slots(count, slot_bytes, mmap.mmap(memory, count * slot_bytes))
        (filled, filling), (to_free, freeing) = os.pipe2(_PIPE), os.pipe2(_PIPE)
    except OSError as error:
        what = f"{count} messages of {slot_bytes} bytes"
        raise RunFailed(f"no shared memory for {what}: {error.strerror or error}") from error
    ends = {"process": os.getpid(), "memory": memory, "filling": filling, "to_free": to_free}
    receiver = SlotReceiver(made, filled, waker, lambda _: _tell(freeing))
    return receiver, {**ends, "count": count, "slot_bytes": slot_bytes}


def shared_memory_sender(address: Address, waker: Waker) -> SlotSender:
    """Open the sending end in the shared memory of a receiver."""

    def opened(name: str, flags: int) -> int:
        return os.open(f"/proc/{address['process']}/fd/{address[name]}", flags | os.O_CLOEXEC)

    count, slot_bytes = address["count"], address["slot_bytes"]
    try:
        memory = opened("memory", os.O_RDWR)
        theirs = slots(count, slot_bytes, mmap.mmap(memory, count * slot_bytes))
        os.close(memory)
        filling, freed = opened("filling", os.O_WRONLY | os.O_NONBLOCK), opened("to_free", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        message = f"cannot share memory with process {address['process']}: {error}"
        raise RunFailed(message, hint='set run.transport = "process-group"') from error
    return SlotSender(theirs, freed, waker, lambda _: _tell(filling), own=count)


def _tell(pipe: int) -> None:
    with suppress(BrokenPipeError):  # the other process has died, which the watchdog reports
        os.write(pipe, b"!")


# --- a process group --------------------------------------------------------------------------------------------------
#
# Channels between two processes are kept apart by their number, the `tag`. A thread waits for the other end, without the interpreter's
# lock, and tells this process through a pipe.


class ProcessGroupReceiver(SlotReceiver):
    """The receiving end of a channel through gloo; receives are posted as far ahead as there are free slots."""

    def __init__(self, rank: int, tag: int, slots: Sequence[Tensor], waker: Waker, lost: Lost) -> None:
        (come, tells), free = os.pipe2(_PIPE), SimpleQueue[Tensor]()
        super().__init__(slots, come, waker, free.put)
        self._expected = expected = SimpleQueue[Form]()
        for slot in slots:
            free.put(slot)

        def serve() -> None:
            posted: deque[dist.Work] = deque()
            while True:
                while not posted or not (expected.empty() or free.empty()):
                    layout, samples = expected.get()
                    work = dist.irecv(free.get()[: layout.extents(samples)[1]], rank, tag=tag)
                    assert work is not None
                    posted.append(work)
                posted.popleft().wait()
                _tell(tells)

        _serve(serve, lost, f"channel {tag} from rank {rank}")

    def begin(self, messages: Iterable[Form]) -> None:
        forms = list(messages)
        super().begin(forms)
        for form in forms:
            self._expected.put(form)


def process_group_sender(rank: int, tag: int, slots: Sequence[Tensor], waker: Waker, lost: Lost) -> SlotSender:
    """Return the sending end of a channel through gloo."""
    (freed, tells), full = os.pipe2(_PIPE), SimpleQueue[Tensor]()

    def serve() -> None:
        while True:
            dist.send(full.get(), rank, tag=tag)
            _tell(tells)

    _serve(serve, lost, f"channel {tag} to rank {rank}")
    return SlotSender(slots, freed, waker, full.put, own=len(slots))


def _serve(serve: Callable[[], None], lost: Lost, name: str) -> None:
    def run() -> None:
        try:
            serve()
        except Exception as error:  # noqa: BLE001  torch raises RuntimeError and its own
            lost(error)

    Thread(target=run, name=name, daemon=True).start()

"""A channel from device to device, through a process group of its own: NCCL between GPUs, for which gloo stands between processors.

A message lies in device memory. Beside it the hosts exchange an announcement, through one of the other transports, which carries what a
host must know: the weight of a micro-batch's targets.

    sender's host                                       receiver's host
    writes the message into the oldest slot        |
    enqueues its send, which waits for the write   |
    announces it                                   ---> enqueues the receive, which waits for the buffer
                                                   |    enqueues a copy out of the buffer, which waits for the receive
    has room for one more                          <--- and the operation that reads the copy

Hosts wait for announcements and room alone, never for a device. At either end the group has a stream of its own: a device computes while
it sends and receives, and waits through events.

Decision: a receive is enqueued when its message is announced, not ahead of it, so the slots are the sender's. NCCL's kernels wait for
their messages, and many calls of CUDA may wait for all kernels: allocating memory, loading a module. A receive ahead of its message would
wait for work that the receiver has yet to enqueue, through the message's own process; and behind the last message it would wait for ever.
As hosts are ahead of their devices, a receive is enqueued long before its message is there.

Decision: no transport that writes into a peer's memory and signals it (`torch.distributed._symmetric_memory`). Torch calls that alpha, which
may change without notice (https://docs.pytorch.org/docs/main/distributed/symmetric_memory.html), and it has: 2.8 has no function that puts
data with a signal, 2.15 has one for a single backend, and who sent a pipeline's messages by that met faults
(https://github.com/NVIDIA/nccl/issues/2238). Shapes must be equal at all ends (`rendezvous`), so slots would be at both.

Proof that no device stands still, whatever the order of operations. Put everything that hosts enqueue in the order of time, and a message,
its send and its receive as one, where its receive is. Then everything comes after all that it waits for:

1. An operation that reads a message comes after the message, which comes after the operation that writes it.
2. A message comes after the one before it on its channel, and after the copy of that out of the buffer.
3. An operation that writes into a slot comes after the message that was there: its receiver has given room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import lru_cache

import torch
import torch.distributed as dist
from attrs import evolve, frozen
from torch import Tensor

from petra_graph.executor.encoded import EncodedTensors
from petra_graph.program.channels import WEIGHT, Channel, MessageLayout
from petra_graph.runtime.channels import Form, Receiver, Sender, read_message, write_message

ANNOUNCEMENT = MessageLayout(tensors=(WEIGHT,))
_NO_WEIGHT = (torch.zeros(1, dtype=torch.float64),)


def announcing(channel: Channel) -> Channel:
    """Return the channel of the announcements of a channel's messages."""
    evaluation = None if channel.evaluation is None else ANNOUNCEMENT
    return evolve(channel, training=ANNOUNCEMENT, evaluation=evaluation)


@frozen(kw_only=True)
class DevicePeer:
    """The other end of a channel, and what connects it."""

    rank: int
    group: dist.ProcessGroup
    """Of the two ranks, for this channel alone."""
    device: torch.device
    """Of this end."""
    answered: Callable[[], AbstractContextManager[None]]
    """Returns a context in which the other end is to answer."""

    def memory(self, channel: Channel) -> Tensor:
        """Allocate memory for a message."""
        return torch.empty(channel.slot_bytes, dtype=torch.uint8, device=self.device)


class _DeviceEnd:
    """What both ends have: announcements, and the forms of their messages."""

    def __init__(self, peer: DevicePeer, announcements: Sender | Receiver) -> None:
        self._peer, self._announced = peer, announcements
        self._forms: Iterator[Form] = iter(())
        # Of a sender: whether the receiver has enqueued the receive of the message in the oldest slot. Of a receiver: whether a message is
        # announced, which may be on its way on a GPU.
        self.ready = announcements.ready

    def begin(self, messages: Iterable[Form]) -> None:
        forms = list(messages)
        self._forms = iter(forms)
        self._announced.begin([(ANNOUNCEMENT, 0)] * len(forms))


class DeviceSender(_DeviceEnd):
    """The sending end."""

    def __init__(self, peer: DevicePeer, channel: Channel, announcements: Sender) -> None:
        super().__init__(peer, announcements)
        self._announce = announcements.send
        self._slots: deque[tuple[Tensor, dist.Work | None]] = deque(
            (peer.memory(channel), None) for _ in range(channel.capacity)
        )
        """With the sends of the messages in them, the oldest first."""
        with peer.answered():
            dist.send(self._slots[0][0][:1], peer.rank, group=peer.group)

    def send(self, message: EncodedTensors) -> None:
        """Enqueue a copy of the message into the oldest slot, and its send."""
        layout = _on_device(next(self._forms)[0])
        count = len(layout.tensors)
        memory, sent = self._slots.popleft()
        with self._peer.answered():
            if sent is not None:
                sent.wait()
        with torch.no_grad():
            size = write_message(layout, memory, message[:count])
        with self._peer.answered():
            self._slots.append((memory, dist.isend(memory[:size], self._peer.rank, group=self._peer.group)))
        self._announce(message[count:] or _NO_WEIGHT)


class DeviceReceiver(_DeviceEnd):
    """The receiving end."""

    def __init__(self, peer: DevicePeer, channel: Channel, announcements: Receiver) -> None:
        super().__init__(peer, announcements)
        self._announcement = announcements.receive
        self._buffer = peer.memory(channel)
        self._streams = torch.get_device_module(peer.device)
        self._ahead = self._streams.Stream()
        """Behind it, receives wait for the buffer alone, not for what is queued on the stream that computes."""
        with peer.answered():
            dist.recv(self._buffer[:1], peer.rank, group=peer.group)

    def receive(self) -> EncodedTensors:
        """Enqueue the receive of the oldest message, and return a copy of it."""
        whole, samples = next(self._forms)
        layout = _on_device(whole)
        buffer = self._buffer[: layout.extents(samples)[1]]
        with self._peer.answered():
            with self._streams.stream(self._ahead):
                received = dist.irecv(buffer, self._peer.rank, group=self._peer.group)
            assert received is not None
            received.wait()
        message = read_message(layout, buffer, samples)
        self._ahead.wait_stream(self._streams.current_stream())
        weight = self._announcement()  # which gives room: not before the receive has been enqueued
        return (*message, *weight) if len(layout.tensors) < len(whole.tensors) else message


@lru_cache
def _on_device(layout: MessageLayout) -> MessageLayout:
    """Return a layout without the weight, which the host reads."""
    return evolve(layout, tensors=tuple(tensor for tensor in layout.tensors if tensor != WEIGHT))

"""A channel through a torch.distributed process group (gloo): between machines, or where memory cannot be shared.

A message is one flat tensor in a preallocated slot. Receives are posted as far ahead as there are free slots, and the
scheduler never waits for a send: each end has a thread that waits in its place, without the interpreter's lock.

Decision: tensors of a GPU are copied to and from host memory at the two ends; the channel's thread waits for the other
end, never the stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from threading import Thread

import torch
import torch.distributed as dist
from attrs import frozen

from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.program.message_layout import MessageLayout
from petra_graph.runtime.control.waiting import Waker
from petra_graph.runtime.transport.channel import Form, Slots, read_message, write_message

Lost = Callable[[Exception], None]
"""Called, from the channel's thread, with what torch raised where the other end does not answer."""


@frozen
class _Posted:
    slot: int
    samples: int
    layout: MessageLayout
    work: dist.Work


class ProcessGroupReceiver:
    """The receiving end."""

    leases = True

    def __init__(self, rank: int, tag: int, slots: Slots, waker: Waker, lost: Lost) -> None:
        """Receive from a rank; `tag` is the channel's number, which keeps apart the channels between two processes."""
        self._rank, self._tag, self._slots, self._waker, self._lost = rank, tag, slots, waker, lost
        self._expected: SimpleQueue[Form] = SimpleQueue()
        self._free_slots: SimpleQueue[int] = SimpleQueue()
        for slot in range(slots.count):
            self._free_slots.put(slot)
        self._arrived: deque[_Posted] = deque()
        Thread(target=self._serve, name=f"channel {tag} from rank {rank}", daemon=True).start()

    def begin(self, messages: Iterable[Form]) -> None:
        for form in messages:
            self._expected.put(form)

    def ready(self) -> bool:
        return bool(self._arrived)

    def receive(self) -> EncodedTensors:
        """Return the oldest message in its slot, which is free when no tensor over it is left."""
        came = self._arrived.popleft()
        memory = self._slots.lease(came.slot, self._free_slots.put)
        return read_message(came.layout, memory, came.samples)

    def _serve(self) -> None:
        posted: deque[_Posted] = deque()
        try:
            while True:
                while not posted or not (self._expected.empty() or self._free_slots.empty()):
                    posted.append(self._post())
                posted[0].work.wait()
                self._arrived.append(posted.popleft())
                self._waker.wake()
        except Exception as error:  # noqa: BLE001  torch raises RuntimeError and its own
            self._lost(error)

    def _post(self) -> _Posted:
        layout, samples = self._expected.get()
        slot = self._free_slots.get()
        memory = self._slots.flat(slot)[: layout.extents(samples)[1]]
        work = dist.irecv(memory, self._rank, tag=self._tag)
        assert work is not None
        return _Posted(slot, samples, layout, work)


class ProcessGroupSender:
    """The sending end."""

    def __init__(self, rank: int, tag: int, slots: Slots, waker: Waker, lost: Lost) -> None:
        """Send to a rank; `tag` as that of the receiver."""
        self._rank, self._tag, self._waker, self._lost = rank, tag, waker, lost
        self._flat = [slots.flat(slot) for slot in range(slots.count)]
        self._free: deque[int] = deque(range(slots.count))
        self._full: SimpleQueue[tuple[int, int]] = SimpleQueue()
        self._forms: Iterator[Form] = iter(())
        Thread(target=self._serve, name=f"channel {tag} to rank {rank}", daemon=True).start()

    def begin(self, messages: Iterable[Form]) -> None:
        self._forms = iter(messages)

    def has_room(self) -> bool:
        return bool(self._free)

    def send(self, message: EncodedTensors) -> None:
        """Copy a message into a free slot."""
        slot = self._free.popleft()
        with torch.no_grad():
            size = write_message(next(self._forms)[0], self._flat[slot], message)
        self._full.put((slot, size))

    def _serve(self) -> None:
        try:
            while True:
                slot, size = self._full.get()
                dist.send(self._flat[slot][:size], self._rank, tag=self._tag)
                self._free.append(slot)
                self._waker.wake()
        except Exception as error:  # noqa: BLE001  torch raises RuntimeError and its own
            self._lost(error)

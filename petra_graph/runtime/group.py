"""A lane through a torch.distributed process group: gloo between hosts and where shared memory cannot serve, NCCL between GPUs.

A message is one flat tensor in a preallocated buffer. Receives are posted ahead of their messages, and sends are not waited
for: each end has a thread that waits in their place, without the interpreter's lock.

    gloo    buffers in host memory; tensors of a GPU are copied there and back at the two ends
    NCCL    buffers on the GPU; every lane has a communicator and a stream of its own, which waits for what the stage has
            computed by events, so that transfers go on beside computation

Decision: what waits for a lane is the lane's thread, never the stage. NCCL alone would let the stage's stream wait for a message
that nobody has sent, and a stage that could do something else would be stuck behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor

from petra_graph.executor.compress import Carried
from petra_graph.runtime.bell import Bell
from petra_graph.runtime.formats import MessageFormat
from petra_graph.runtime.slots import Slots

Lost = Callable[[Exception], None]
"""Called, from a thread, with what torch raised where the other end has gone."""


@frozen(kw_only=True)
class Peer:
    """The other end of a lane."""

    rank: int
    tag: int
    """The lane's number: messages of other lanes between the same processes do not mix with its own."""
    group: dist.ProcessGroup | None = None
    """None: that of all processes."""


class Buffers(Protocol):
    """A lane's memory at one end, and how its thread and the stage wait for one another there.

    A mark stands for all that the stage has computed so far.
    """

    @property
    def count(self) -> int:
        """How many messages there is room for."""
        ...

    @property
    def ahead(self) -> int:
        """How many receives may be posted at once."""
        ...

    def flat(self, slot: int) -> Tensor:
        """Return a buffer's bytes."""
        ...

    def taken(self, slot: int, release: Callable[[int], object]) -> Tensor:
        """Return a buffer's bytes, to be read by the stage; `release` says that the buffer may be written again."""
        ...

    def mark(self) -> Any:
        """Return what the stage has computed so far; called by the stage."""
        ...

    def after(self, mark: Any) -> AbstractContextManager[None]:
        """Return what surrounds a transfer that comes after a mark; called by the lane's thread."""
        ...

    def finished(self, work: dist.Work) -> None:
        """Return when a transfer, begun inside `after`, has been done; called by the lane's thread."""
        ...


class HostBuffers:
    """Buffers in host memory: the stage's computations are done when it says so, and messages are read where they lie."""

    def __init__(self, count: int, slot_bytes: int) -> None:
        self._slots = Slots.private(count, slot_bytes)
        self.count = self.ahead = count

    def flat(self, slot: int) -> Tensor:
        """Return a buffer's bytes."""
        return self._slots.flat(slot)

    def taken(self, slot: int, release: Callable[[int], object]) -> Tensor:
        """Return them; the buffer is released when nobody refers to them any more."""
        return self._slots.leased(slot, release)

    def mark(self) -> None:
        """There is nothing to wait for."""

    def after(self, mark: Any) -> AbstractContextManager[None]:
        """There is nothing to wait for."""
        return nullcontext()

    def finished(self, work: dist.Work) -> None:
        """Wait for the transfer."""
        work.wait()


class DeviceBuffers:
    """Buffers on a CUDA device, and the stream of the lane's transfers.

    One receive is posted at a time: the lane's stream waits for it, and so would all that was posted after it.
    """

    ahead = 1

    def __init__(self, count: int, slot_bytes: int, device: torch.device) -> None:
        self.count = count
        self._memory = torch.empty(count, max(1, slot_bytes), dtype=torch.uint8, device=device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def flat(self, slot: int) -> Tensor:
        """Return a buffer's bytes."""
        return self._memory[slot]

    def taken(self, slot: int, release: Callable[[int], object]) -> Tensor:
        """Return a copy; the buffer may be written again once that has been made."""
        copy = self._memory[slot].clone()
        release(slot)
        return copy

    def mark(self) -> torch.cuda.Event:
        """Return an event on the stage's stream."""
        event: torch.cuda.Event = torch.cuda.current_stream(self._memory.device).record_event()
        return event

    @contextmanager
    def after(self, mark: torch.cuda.Event | None):  # type: ignore[no-untyped-def]  # noqa: ANN201
        """Let the lane's stream wait for a mark."""
        with torch.cuda.stream(self._stream):
            if mark is not None:
                self._stream.wait_event(mark)
            yield

    def finished(self, work: dist.Work) -> None:
        """Wait for the transfer: NCCL's own wait is the stream's alone."""
        with torch.cuda.stream(self._stream):
            work.wait()
            event = self._stream.record_event()
        event.synchronize()


@frozen
class _Posted:
    slot: int
    samples: int
    message: MessageFormat
    work: dist.Work


class GroupReceiver:
    """The reading end."""

    def __init__(self, peer: Peer, buffers: Buffers, bell: Bell, lost: Lost) -> None:
        self._peer, self._buffers, self._bell, self._lost = peer, buffers, bell, lost
        self._expected: SimpleQueue[tuple[MessageFormat, int]] = SimpleQueue()
        self._free: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        for slot in range(buffers.count):
            self._free.put((slot, None))
        self._arrived: deque[_Posted] = deque()
        Thread(target=self._serve, name=f"lane {peer.tag} from rank {peer.rank}", daemon=True).start()

    def begin(self, message: MessageFormat, samples: Iterable[int]) -> None:
        """Expect messages of this format with so many samples each."""
        for size in samples:
            self._expected.put((message, size))

    def ready(self) -> bool:
        """Whether `receive` would return at once."""
        return bool(self._arrived)

    def receive(self) -> Carried:
        """Return the oldest message; its buffer is free when nobody reads it any more."""
        came = self._arrived.popleft()
        return came.message.read(self._buffers.taken(came.slot, self._release), came.samples)

    def _release(self, slot: int) -> None:
        self._free.put((slot, self._buffers.mark()))

    def _serve(self) -> None:
        posted: deque[_Posted] = deque()
        try:
            while True:
                while not posted or self._may_post(len(posted)):
                    posted.append(self._post())
                self._buffers.finished(posted[0].work)
                self._arrived.append(posted.popleft())
                self._bell.ring()
        except Exception as error:  # noqa: BLE001  torch raises RuntimeError and its own
            self._lost(error)

    def _may_post(self, posted: int) -> bool:
        return posted < self._buffers.ahead and not (self._expected.empty() or self._free.empty())

    def _post(self) -> _Posted:
        message, samples = self._expected.get()
        slot, mark = self._free.get()
        memory = self._buffers.flat(slot)[: message.nbytes(samples)]
        with self._buffers.after(mark):
            work = dist.irecv(memory, self._peer.rank, group=self._peer.group, tag=self._peer.tag)
        assert work is not None
        return _Posted(slot, samples, message, work)


class GroupSender:
    """The writing end."""

    def __init__(self, peer: Peer, buffers: Buffers, bell: Bell, lost: Lost) -> None:
        self._peer, self._buffers, self._bell, self._lost = peer, buffers, bell, lost
        self._free: deque[int] = deque(range(buffers.count))
        self._full: SimpleQueue[tuple[int, int, Any]] = SimpleQueue()
        self._format = MessageFormat(tensors=())
        Thread(target=self._serve, name=f"lane {peer.tag} to rank {peer.rank}", daemon=True).start()

    def begin(self, message: MessageFormat) -> None:
        """Send messages of this format from now on."""
        self._format = message

    def has_room(self) -> bool:
        """Whether a message can be sent."""
        return bool(self._free)

    def send(self, carried: Carried) -> None:
        """Copy a message into a free buffer; the caller's tensors are its own again."""
        slot = self._free.popleft()
        with torch.no_grad():
            size = self._format.write(self._buffers.flat(slot), carried)
        self._full.put((slot, size, self._buffers.mark()))

    def _serve(self) -> None:
        try:
            while True:
                slot, size, mark = self._full.get()
                memory = self._buffers.flat(slot)[:size]
                with self._buffers.after(mark):
                    work = dist.isend(memory, self._peer.rank, group=self._peer.group, tag=self._peer.tag)
                assert work is not None
                self._buffers.finished(work)
                self._free.append(slot)
                self._bell.ring()
        except Exception as error:  # noqa: BLE001  torch raises RuntimeError and its own
            self._lost(error)

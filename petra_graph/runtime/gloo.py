"""What goes through a torch.distributed process group (gloo): channels between machines, or where memory cannot be shared, and gathered tensors.

A message is one flat tensor in a preallocated slot. Receives are posted as far ahead as there are free slots, and the
scheduler never waits for a send: each end has a thread that waits in its place, without the interpreter's lock.

Decision: tensors of a GPU are copied to and from host memory at the two ends; the channel's thread waits for the other
end, never the stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from queue import SimpleQueue
from threading import Thread

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor

from petra_graph.executor.encoded import EncodedTensors
from petra_graph.program.message_layout import MessageLayout
from petra_graph.runtime.channels import Form, Slots, read_message, write_message
from petra_graph.runtime.waiting import Waker
from petra_graph.runtime.world import World

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
        """Return a copy of the oldest message, and free its slot."""
        came = self._arrived.popleft()
        message = read_message(came.layout, self._slots.flat(came.slot), came.samples)
        self._free_slots.put(came.slot)
        return message

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


_GATHERED = 1 << 20
"""The tag of gathered tensors, far above those of channels."""


def gather_tensors(world: World, name: str, own: Mapping[str, Tensor], ranks: Sequence[int]) -> Mapping[str, Tensor]:
    """Return the tensors of a pipeline in the last stage's process, this process's own elsewhere.

    Args:
        name: of what is gathered, once in a run.
        own: tensors of this process's stages by name, on the CPU and densely laid out.
        ranks: the process of each stage, in order; a process that hosts none of them keeps its own tensors.
    """
    target = ranks[-1]
    described = [(key, list(value.shape), str(value.dtype).removeprefix("torch.")) for key, value in own.items()]
    if world.rank not in ranks:
        return own
    if world.rank != target:
        world.store.set(f"{name}/{world.rank}", described)
        for value in own.values():
            dist.send(_bytes(value), target, tag=_GATHERED)
        return own
    found = dict(own)
    for rank in dict.fromkeys(ranks):
        if rank == target:
            continue
        for key, shape, dtype in world.wait(f"{name}/{rank}"):
            found[key] = torch.empty(shape, dtype=getattr(torch, dtype))
            dist.recv(_bytes(found[key]), rank, tag=_GATHERED)
    return found


def _bytes(value: Tensor) -> Tensor:
    return value.detach().reshape(-1).view(torch.uint8)

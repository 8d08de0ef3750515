"""The lanes of one process: in a queue, in shared memory, or through the process group.

both ends here                               a queue, without limit: the schedule limits what is under way
the other end in a process of this machine   shared memory (`ring`)
elsewhere, or run.transport says so          the process group (`group`)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from attrs import define, field, frozen

from petra_graph.errors import RunFailed
from petra_graph.executor.compress import Carried
from petra_graph.measure.shapes import NodeShapes
from petra_graph.program.lanes import Lane, slots
from petra_graph.program.stage_program import Edge, InputEdge, StageProgram
from petra_graph.runtime.bell import Bell
from petra_graph.runtime.channel import LocalChannel
from petra_graph.runtime.formats import MessageFormat, TensorFormat, stream_formats
from petra_graph.runtime.group import GroupReceiver, GroupSender, Peer
from petra_graph.runtime.ring import RingReceiver, RingSender
from petra_graph.runtime.slots import Slots
from petra_graph.runtime.world import World
from petra_graph.spec.model import PrecisionSpec, StoredDtype, Transport

_ATTACH_SECONDS = 300.0
_ROUND_BYTES = 64


class Sender(Protocol):
    """The writing end of a lane."""

    def begin(self, message: MessageFormat) -> None:
        """Send messages of this format from now on."""
        ...

    def has_room(self) -> bool:
        """Whether a message can be sent."""
        ...

    def send(self, carried: Carried) -> None:
        """Send a message."""
        ...


class Receiver(Protocol):
    """The reading end of a lane."""

    def begin(self, message: MessageFormat, samples: Iterable[int]) -> None:
        """Expect messages of this format with so many samples each."""
        ...

    def ready(self) -> bool:
        """Whether `receive` would return at once."""
        ...

    def receive(self) -> Carried:
        """Return the oldest message; it may lie in a slot that is taken for as long as anyone refers to it."""
        ...


class Queue(LocalChannel[Carried]):
    """Both ends of a lane within a process."""

    def begin(self, message: MessageFormat, samples: Iterable[int] = ()) -> None:
        """Any message will do."""

    def has_room(self) -> bool:
        """Whether a message can be sent."""
        return True


@frozen(kw_only=True)
class Wiring:
    """Everything about lanes that is known before a process starts."""

    programs: Sequence[StageProgram]
    ranks: Sequence[int]
    """Of each stage."""
    shapes: Mapping[str, NodeShapes]
    precision: PrecisionSpec
    batch: int
    """Samples of a training micro-batch."""
    evaluation_batch: int

    @property
    def entries(self) -> Mapping[Edge, InputEdge]:
        """All edges into segments."""
        return {
            entry.edge: entry for program in self.programs for segment in program.segments for entry in segment.inputs
        }

    def lanes(self) -> Iterator[_Planned]:
        """Yield all lanes, everywhere in the same order."""
        place = {name: program.index - 1 for program in self.programs for name in program.nodes}
        entries = self.entries
        for program in self.programs:
            for edge in program.sends:
                ends = program.index - 1, place[edge.consumer]
                count = slots(program.depth, self.programs[ends[1]].depth)
                forth = self._forward(entries[edge], self.precision.wire_dtype)
                shown = self._forward(entries[edge], "as-streams")
                back = self._backward(entries[edge])
                most = max(forth.nbytes(self.batch), shown.nbytes(self.evaluation_batch))
                yield _Planned(
                    Lane(edge, "forward"), *self._ranks(*ends), count, most, training=forth, evaluation=shown
                )
                yield _Planned(
                    Lane(edge, "backward"), *self._ranks(*reversed(ends)), count, back.nbytes(self.batch), training=back
                )

    def _ranks(self, sender: int, receiver: int) -> tuple[int, int]:
        return self.ranks[sender], self.ranks[receiver]

    def _forward(self, entry: InputEdge, stored: StoredDtype) -> MessageFormat:
        return MessageFormat(tensors=self._streams(entry, stored))

    def _backward(self, entry: InputEdge) -> MessageFormat:
        """Return the gradients' format, and the activation's after it."""
        streams = self._streams(entry, self.precision.wire_dtype)
        gradients = tuple(_gradient(stream) for stream in streams)
        return MessageFormat(tensors=gradients + (streams if entry.returns_activation else ()))

    def _streams(self, entry: InputEdge, stored: StoredDtype) -> tuple[TensorFormat, ...]:
        node = self.shapes[entry.edge.producer]
        return stream_formats(node.outputs, node.dtypes, self.precision, stored)


@frozen
class _Planned:
    """One lane, before its ends exist."""

    lane: Lane
    sender: int
    receiver: int
    """Ranks."""
    count: int
    most_bytes: int
    training: MessageFormat = field(kw_only=True)
    evaluation: MessageFormat | None = field(default=None, kw_only=True)

    @property
    def slot_bytes(self) -> int:
        return -(-self.most_bytes // _ROUND_BYTES) * _ROUND_BYTES


@define(kw_only=True)
class Links:
    """The ends that a process has."""

    senders: dict[Lane, Sender] = field(factory=dict)
    receivers: dict[Lane, Receiver] = field(factory=dict)
    planned: Mapping[Lane, _Planned]

    def begin_training(self, samples: Sequence[int]) -> None:
        """Get ready for an epoch of micro-batches."""
        for lane, receiver in self.receivers.items():
            receiver.begin(self.planned[lane].training, samples)
        for lane, sender in self.senders.items():
            sender.begin(self.planned[lane].training)

    def begin_evaluation(self, samples: Sequence[int]) -> None:
        """Get ready for batches of so many samples each; nothing goes backward."""
        for lane, receiver in self.receivers.items():
            if (message := self.planned[lane].evaluation) is not None:
                receiver.begin(message, samples)
        for lane, sender in self.senders.items():
            if (message := self.planned[lane].evaluation) is not None:
                sender.begin(message)

    def peer(self, lane: Lane, own: int) -> int:
        """Return the rank of a lane's other end."""
        planned = self.planned[lane]
        return planned.receiver if planned.sender == own else planned.sender


class Hears(Protocol):
    """Who is told of a lane whose other end does not answer."""

    def lost(self, lane: str, rank: int, error: Exception) -> None:
        """Take note of it."""
        ...


def connect(wiring: Wiring, world: World, bell: Bell, hears: Hears, transport: Transport) -> Links:
    """Build this process's ends; all processes do so at the same time.

    Raises:
        RunFailed: there is no memory for the slots, or another process has not come.
    """
    links = Links(planned={planned.lane: planned for planned in wiring.lanes()})
    attaching: list[tuple[str, _Planned]] = []
    for tag, planned in enumerate(links.planned.values()):
        lane, name = planned.lane, f"lane/{wiring.ranks[0]}/{tag}"
        if planned.sender == planned.receiver:
            if planned.sender == world.rank:
                links.senders[lane] = links.receivers[lane] = Queue()
        elif world.rank in {planned.sender, planned.receiver}:
            other = links.peer(lane, world.rank)
            if transport != "auto" or not world.share_machine(other):
                _through_group(links, planned, Peer(rank=other, tag=tag), bell, hears)
            elif planned.receiver == world.rank:
                receiver = RingReceiver(planned.count, planned.slot_bytes, bell)
                links.receivers[lane] = receiver
                world.facts.tell(name, receiver.address)
            else:
                attaching.append((name, planned))
    for name, planned in attaching:
        address = world.facts.ask(name, _ATTACH_SECONDS, f"{planned.lane}: rank {planned.receiver} is not ready")
        try:
            links.senders[planned.lane] = RingSender(address, bell)
        except OSError as error:
            raise RunFailed(
                f"{planned.lane}: rank {world.rank} cannot share memory with rank {planned.receiver}: {error}",
                hint='set run.transport = "process-group"',
            ) from error
    return links


def _through_group(links: Links, planned: _Planned, peer: Peer, bell: Bell, hears: Hears) -> None:
    def lost(error: Exception) -> None:
        hears.lost(str(planned.lane), peer.rank, error)

    memory = Slots.private(planned.count, planned.slot_bytes)
    if planned.sender == peer.rank:
        links.receivers[planned.lane] = GroupReceiver(peer, memory, bell, lost)
    else:
        links.senders[planned.lane] = GroupSender(peer, memory, bell, lost)


def _gradient(stream: TensorFormat) -> TensorFormat:
    if stream.dtype.is_floating_point:
        return stream
    return TensorFormat(shape=(), dtype=stream.dtype, stored=stream.dtype, channels_last=False, vacant=True)

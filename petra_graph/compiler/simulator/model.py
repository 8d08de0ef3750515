"""What the time model knows of a pipeline: seconds of its stages, bytes of its wires, and the devices and links below.

Everything else (who waits for whom) follows from the order of operations that the runtimes execute.

    stage 1 --- forward channel, bytes of the activation ---------------> stage 2
            <-- backward channel, bytes of gradient (and activation) ---

Decision: messages between two stages of one device cost no time and need no slot: they are handed over in place.

Decision: a channel with s slots is s preallocated places for messages. An operation starts only when each channel that it
sends on has a free place, since its outputs are written there, and a place is free again when the operation that reads
it has ended. A runtime that computes first and waits for a place at the end is never slower, nor does it deadlock where
this model does not, so slots that are enough here are enough there.

Decision: transfers go on beside computation, one after another on each directed pair of devices; each occupies the
link for bytes / bandwidth and arrives a latency later. Under `blocking_sends` the sender waits for its arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from attrs import define, field, frozen
from attrs.validators import ge

from petra_graph.program.channels import ChannelKey, Direction, Edge
from petra_graph.program.devices import Link
from petra_graph.spec.model import Flush


@frozen(kw_only=True)
class StageSeconds:
    """What one stage's operations take on its device, for one micro-batch."""

    forward: float = field(validator=ge(0))
    backward: float = field(validator=ge(0))
    """With whatever is reconstructed or run again; the head's with its loss."""
    update: float = field(default=0.0, validator=ge(0))
    """One optimizer step, and what the step waits for (an all-reduce that nothing hides)."""


@frozen(kw_only=True)
class MessageBytes:
    """Sizes of one edge's messages."""

    forward: int = field(default=0, validator=ge(0))
    backward: int = field(default=0, validator=ge(0))


@frozen(kw_only=True)
class DeviceExecution:
    """How a device executes."""

    overlaps: bool = False
    """Forwards on one stream, backwards and updates on another; otherwise one operation at a time."""
    contention: float = field(default=1.0, validator=ge(1))
    """How much slower an operation is on an overlapping device, in stages of depth 2 or more (where the two meet)."""


@frozen(kw_only=True)
class TimedStage:
    """One stage: when it does what, and how long that takes."""

    index: int
    """From 1 to J."""
    device: str
    depth: int
    accumulation: int
    flush: Flush
    seconds: StageSeconds


@frozen(kw_only=True)
class TimedEdge:
    """An edge between two stages."""

    edge: Edge
    producer: int
    """The sending stage's index."""
    consumer: int
    bytes: MessageBytes


@define(kw_only=True, frozen=True, eq=False, slots=False)
class Pipeline:
    """All stages, from the source's to the head's, in topological order."""

    stages: tuple[TimedStage, ...]
    wires: tuple[TimedEdge, ...]
    devices: Mapping[str, DeviceExecution] = field(factory=dict)
    """Those that are not the default, which does one operation at a time."""
    link: Link = field(factory=Link)
    """Between any two devices that `links` does not name."""
    links: Mapping[tuple[str, str], Link] = field(factory=dict)
    """By sender and receiver; the other way round where only that is given."""
    slots: Mapping[ChannelKey, int] = field(factory=dict)
    """Places for messages; a channel that is not named has as many as are asked for."""
    blocking_sends: bool = False

    @property
    def accumulation(self) -> int:
        """Micro-batches in one update."""
        return self.stages[0].accumulation

    @property
    def flushes(self) -> bool:
        """Whether the pipeline empties after each window of accumulation."""
        return self.stages[0].flush == "window"

    @property
    def head(self) -> TimedStage:
        """The stage with the loss."""
        return self.stages[-1]

    @cached_property
    def hosted(self) -> Mapping[str, tuple[TimedStage, ...]]:
        """The stages of each device, devices in the order of their first stage."""
        found: dict[str, list[TimedStage]] = {}
        for stage in self.stages:
            found.setdefault(stage.device, []).append(stage)
        return {device: tuple(stages) for device, stages in found.items()}

    @property
    def one_stage_a_device(self) -> bool:
        """Whether the order of operations on each device is that of its one stage, whatever the time."""
        return len(self.hosted) == len(self.stages)

    def device(self, stage: TimedStage) -> DeviceExecution:
        """Return how the stage's device executes."""
        return self.devices.get(stage.device, DeviceExecution())

    def overlaps(self, stage: TimedStage) -> bool:
        """Whether the stage's forwards and backwards run on two streams."""
        return self.device(stage).overlaps

    def seconds(self, stage: TimedStage) -> StageSeconds:
        """Return what the stage's operations take, slowed where two of them meet."""
        device = self.device(stage)
        if not device.overlaps or stage.depth == 1 or device.contention == 1:
            return stage.seconds
        return StageSeconds(
            forward=stage.seconds.forward * device.contention,
            backward=stage.seconds.backward * device.contention,
            update=stage.seconds.update,
        )

    def between(self, sender: str, receiver: str) -> Link:
        """Return the link from one device to another."""
        return self.links.get((sender, receiver)) or self.links.get((receiver, sender)) or self.link

    @cached_property
    def channels(self) -> Mapping[ChannelKey, ChannelTiming]:
        """Both directions of every wire, forward ones first, in the wires' order."""
        stages = {stage.index: stage for stage in self.stages}
        return {
            ChannelKey(wire.edge, direction): self._hop(ChannelKey(wire.edge, direction), wire, stages)
            for direction in _DIRECTIONS
            for wire in self.wires
        }

    def _hop(self, channel: ChannelKey, wire: TimedEdge, stages: Mapping[int, TimedStage]) -> ChannelTiming:
        ends = stages[wire.producer], stages[wire.consumer]
        sender, receiver = ends if channel.direction == "forward" else reversed(ends)
        local = sender.device == receiver.device
        link = Link() if local else self.between(sender.device, receiver.device)
        size = wire.bytes.forward if channel.direction == "forward" else wire.bytes.backward
        return ChannelTiming(
            sender=sender.index,
            receiver=receiver.index,
            link=None if local else (sender.device, receiver.device),
            occupies_seconds=size / link.bytes_per_second,
            latency_seconds=link.latency_seconds,
            slots=None if local else self.slots.get(channel),
        )


_DIRECTIONS: tuple[Direction, Direction] = ("forward", "backward")


@frozen(kw_only=True)
class ChannelTiming:
    """What a message meets on one channel."""

    sender: int
    """Index of the stage whose operation sends it."""
    receiver: int
    link: tuple[str, str] | None
    """The devices, sender and receiver; None on one device."""
    occupies_seconds: float
    """For which no other message enters the link."""
    latency_seconds: float
    slots: int | None

    @property
    def seconds(self) -> float:
        """From leaving to arriving, on an idle link."""
        return self.occupies_seconds + self.latency_seconds

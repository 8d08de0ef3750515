"""The input of the time model: seconds of the stages, bytes of their messages, devices and links.

The order of operations that the runtimes execute (`program.schedule`) decides the rest.

    stage 1 --- forward channel, bytes of the activation ---------------> stage 2
            <-- backward channel, bytes of gradient (and activation) ---
            <-- activation channel, where stage 2 splits its backward --

Decision: messages between two stages of one device cost no time and no capacity: they are handed over in place.

Decision: a channel of capacity s has s preallocated places for messages. An operation starts only when each channel that
it sends on has a free place, since its outputs are written there; a place is free again when the operation that reads it
has ended. A runtime that computes first and waits for a place at the end is never slower, and it does not deadlock where
this model does not, so a capacity that suffices here suffices there.

Decision: transfers overlap computation, one after another on each directed pair of devices; each occupies the link
for bytes / bandwidth and arrives a latency later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import networkx as nx
from attrs import define, evolve, field, frozen
from attrs.validators import ge

from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import ChannelKey, Direction, Edge, Verb
from petra_graph.program.device_types import Link
from petra_graph.program.schedule import Action, messages, order, verb_depth
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import Flush, Word

DIRECTIONS: tuple[Direction, ...] = ("forward", "activation", "backward")
"""Messages that one stage sends leave in this order."""


@frozen(kw_only=True)
class StageSeconds:
    """Seconds of one stage's operations on its device, for one micro-batch."""

    forward: float = field(validator=ge(0))
    backward: float = field(validator=ge(0))
    """With reconstruction or recomputation; the head's with its loss. The sum of the parts of a split one."""
    reconstruct: float = field(default=0.0, validator=ge(0))
    """Of `backward`, where that is an operation of its own: evaluating or reconstructing again, before the gradient is needed."""
    input_gradient: float = field(default=0.0, validator=ge(0))
    """Of `backward`, likewise: until the gradient of the stage's input is known."""
    update: float = field(default=0.0, validator=ge(0))
    """One optimizer step, with an all-reduce that no computation hides."""
    exchange: float = field(default=0.0, validator=ge(0))
    """Of `update`: waiting for the all-reduce, which does not count as work."""

    @property
    def parameter_gradient(self) -> float:
        """Of `backward`: the rest."""
        return max(0.0, self.backward - self.reconstruct - self.input_gradient)

    def of(self, verb: Verb) -> float:
        """Return the seconds of an operation; "backward" is what the parts before it leave."""
        seconds: float = self.backward - self.reconstruct if verb == "backward" else getattr(self, verb)
        return seconds

    def per_micro_batch(self, accumulation: int) -> float:
        """Return the work of a micro-batch, with its share of an update."""
        return self.forward + self.backward + (self.update - self.exchange) / accumulation


@frozen(kw_only=True)
class MessageBytes:
    """Sizes of one edge's messages."""

    forward: int = field(default=0, validator=ge(0))
    backward: int = field(default=0, validator=ge(0))
    activation: int = field(default=0, validator=ge(0))
    """Where it leaves ahead of the gradient."""

    @property
    def returned(self) -> int:
        """To the producer, on both channels."""
        return self.backward + self.activation


@frozen(kw_only=True)
class TimedStage:
    """One stage: its device, its order of operations and their durations."""

    index: int
    """From 1 to J."""
    device: str
    depth: int
    accumulation: int
    flush: Flush
    seconds: StageSeconds
    word: Word = "FB"

    def verb_depth(self, verb: Verb) -> int:
        return verb_depth(verb, self.depth, self.word)

    def actions(self, micro_batches: int) -> Iterator[Action]:
        """Yield the stage's operations between two drains."""
        return order(self.depth, range(micro_batches), self.accumulation, self.flush, word=self.word)


@frozen(kw_only=True)
class ChannelTiming:
    """Durations of one channel's messages."""

    sender: int
    """Index of the stage whose operation sends it."""
    receiver: int
    sent_by: Verb
    """The operation at whose end it leaves."""
    read_by: Verb
    """The operation that reads it."""
    link: tuple[str, str] | None
    """The devices, sender and receiver; None on one device."""
    occupies_seconds: float
    """Time in which no other message enters the link."""
    latency_seconds: float
    capacity: int | None = None
    """None: unbounded."""

    @property
    def seconds(self) -> float:
        """From leaving to arriving, on an idle link."""
        return self.occupies_seconds + self.latency_seconds


@define(kw_only=True, frozen=True, eq=False, slots=False)
class Pipeline:
    """All stages, from the source's to the head's, in topological order."""

    stages: tuple[TimedStage, ...]
    channels: Mapping[ChannelKey, ChannelTiming]
    """All directions of every edge between stages, forward ones first."""
    links: Mapping[tuple[str, str], Link]
    """By sending and receiving device."""
    overlap: bool
    """Devices run forwards on one stream, backwards and updates on another; otherwise one operation at a time."""

    @property
    def accumulation(self) -> int:
        return self.stages[0].accumulation

    @property
    def split(self) -> bool:
        """Whether any stage's backward is split."""
        return any(stage.word != "FB" for stage in self.stages)

    @property
    def may_run(self) -> bool:
        """Whether depths grow along no channel, so that no order of operations waits for ever."""
        stages = {stage.index: stage for stage in self.stages}
        return all(
            stages[timing.receiver].verb_depth(timing.read_by) >= stages[timing.sender].verb_depth(timing.sent_by)
            for key, timing in self.channels.items()
            if key.direction != "forward"
        )

    @property
    def flushes(self) -> bool:
        """Whether the pipeline empties after each window of accumulation."""
        return self.stages[0].flush == "window"

    @property
    def head(self) -> TimedStage:
        return self.stages[-1]

    @cached_property
    def graph(self) -> nx.DiGraph:
        graph = nx.DiGraph()
        graph.add_nodes_from(stage.index for stage in self.stages)
        graph.add_edges_from((channel.sender, channel.receiver) for channel in self.forward_channels.values())
        return graph

    @property
    def forward_channels(self) -> Mapping[Edge, ChannelTiming]:
        return {key.edge: channel for key, channel in self.channels.items() if key.direction == "forward"}

    @cached_property
    def hosted(self) -> Mapping[str, tuple[TimedStage, ...]]:
        """The stages of each device, devices in the order of their first stage."""
        found: dict[str, list[TimedStage]] = {}
        for stage in self.stages:
            found.setdefault(stage.device, []).append(stage)
        return {device: tuple(stages) for device, stages in found.items()}

    @property
    def one_stage_a_device(self) -> bool:
        """Whether each device follows the order of its one stage, whatever the durations."""
        return len(self.hosted) == len(self.stages)

    def with_capacity(self, capacity: Mapping[ChannelKey, int]) -> Pipeline:
        """Return the same pipeline with these capacities of channels between devices, and no other bounds."""
        channels = {
            key: evolve(channel, capacity=None if channel.link is None else capacity.get(key))
            for key, channel in self.channels.items()
        }
        return evolve(self, channels=channels)

    def with_free_links(self) -> Pipeline:
        """Return the same pipeline where messages take no time."""
        channels = {
            key: evolve(channel, occupies_seconds=0.0, latency_seconds=0.0) for key, channel in self.channels.items()
        }
        return evolve(self, channels=channels)


def pipeline(
    programs: Sequence[StageProgram],
    seconds: Sequence[StageSeconds],
    *,
    channel_bytes: Mapping[Edge, MessageBytes],
    links: Mapping[tuple[str, str], Link],
    overlap: bool,
) -> Pipeline:
    """Return the time model's view of compiled programs, with unbounded channels.

    Args:
        seconds: each stage's durations on its device.
        channel_bytes: sizes of messages, by edge.
        links: by names of sending and receiving device.
        overlap: whether devices run forwards and backwards on two streams.
    """
    sender_of = {edge: program for program in programs for edge in program.sends}
    ends = {
        edge: (sender_of[edge], program) for program in programs for edge in program.receives if edge.producer != INPUT
    }
    returned = {
        entry.edge
        for program in programs
        for segment in program.segments
        for entry in segment.inputs
        if entry.returns_activation
    }
    verbs = {
        edge: messages(producer.word, consumer.word, returns_activation=edge in returned)
        for edge, (producer, consumer) in ends.items()
    }

    def channel(edge: Edge, direction: Direction) -> ChannelTiming:
        sender, receiver = ends[edge] if direction == "forward" else ends[edge][::-1]
        sent_by, read_by = verbs[edge][direction]
        devices = sender.device, receiver.device
        local = devices[0] == devices[1]
        link = Link() if local else links.get(devices) or links[devices[::-1]]
        return ChannelTiming(
            sender=sender.index,
            receiver=receiver.index,
            sent_by=sent_by,
            read_by=read_by,
            link=None if local else devices,
            occupies_seconds=getattr(channel_bytes[edge], direction) / link.bytes_per_second,
            latency_seconds=link.latency_seconds,
        )

    return Pipeline(
        stages=tuple(
            TimedStage(
                index=program.index,
                device=program.device,
                depth=program.depth,
                accumulation=program.accumulation,
                flush=program.flush,
                seconds=each,
                word=program.word,
            )
            for program, each in zip(programs, seconds, strict=True)
        ),
        channels={
            ChannelKey(edge, direction): channel(edge, direction)
            for direction in DIRECTIONS
            for edge in ends
            if direction in verbs[edge]
        },
        links=links,
        overlap=overlap,
    )

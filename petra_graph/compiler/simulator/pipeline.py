"""The input of the time model: seconds of the stages, bytes of their messages, devices and links.

The order of operations that the runtimes execute (`program.schedule`) decides the rest.

    stage 1 --- forward channel, bytes of the activation ---------------> stage 2
            <-- backward channel, bytes of gradient (and activation) ---

Decision: messages between two stages of one device cost no time: they are handed over in place. Channels have no bound here, since
their capacities never delay a stage (`program.channels.capacity`).

Decision: transfers overlap computation, one after another on each directed pair of devices; each occupies the link
for bytes / bandwidth and arrives a latency later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import get_args

import networkx as nx
from attrs import define, evolve, field, frozen
from attrs.validators import ge

from petra_graph.graph.node_graph import INPUT, growing_edges
from petra_graph.program.channels import ChannelKey, Direction, Edge
from petra_graph.program.device_types import Link
from petra_graph.program.schedule import Action, Verb, order
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import Flush


@frozen(kw_only=True)
class StageSeconds:
    """Seconds of one stage's operations on its device, for one micro-batch."""

    forward: float = field(validator=ge(0))
    backward: float = field(validator=ge(0))
    """With reconstruction or recomputation; the head's with its loss."""
    update: float = field(default=0.0, validator=ge(0))
    """One optimizer step, with an all-reduce that no computation hides."""
    exchange: float = field(default=0.0, validator=ge(0))
    """Of `update`: waiting for the all-reduce, which does not count as work."""

    def of(self, verb: Verb) -> float:
        seconds: float = getattr(self, verb)
        return seconds

    def per_micro_batch(self, accumulation: int) -> float:
        """Return the work of a micro-batch, with its share of an update."""
        return self.forward + self.backward + (self.update - self.exchange) / accumulation

    def scaled(self, share: float) -> StageSeconds:
        """Return a share of all that is not waiting."""
        if share == 1:
            return self
        return StageSeconds(
            forward=share * self.forward,
            backward=share * self.backward,
            update=share * (self.update - self.exchange) + self.exchange,
            exchange=self.exchange,
        )


@frozen(kw_only=True)
class MessageBytes:
    """Sizes of one edge's messages."""

    forward: int = field(default=0, validator=ge(0))
    backward: int = field(default=0, validator=ge(0))


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

    def actions(self, micro_batches: int) -> Iterator[Action]:
        """Yield the stage's operations between two drains."""
        return order(self.depth, range(micro_batches), self.accumulation, self.flush)


@frozen(kw_only=True)
class ChannelTiming:
    """Durations of one channel's messages."""

    sender: int
    """Index of the stage whose operation sends it."""
    receiver: int
    link: tuple[str, str] | None
    """The devices, sender and receiver; None on one device."""
    occupies_seconds: float
    """Time in which no other message enters the link."""
    latency_seconds: float

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

    @property
    def accumulation(self) -> int:
        return self.stages[0].accumulation

    @property
    def may_run(self) -> bool:
        """Whether depths grow along no edge, so that no order of operations waits for ever."""
        return not growing_edges(self.graph, {stage.index: stage.depth for stage in self.stages})

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
) -> Pipeline:
    """Return the time model's view of compiled programs.

    Args:
        seconds: each stage's durations on its device.
        channel_bytes: sizes of messages, by edge.
        links: by names of sending and receiving device.
    """
    sender_of = {edge: program for program in programs for edge in program.sends}
    ends = {
        edge: (sender_of[edge], program) for program in programs for edge in program.receives if edge.producer != INPUT
    }

    def channel(edge: Edge, direction: Direction) -> ChannelTiming:
        sender, receiver = ends[edge] if direction == "forward" else ends[edge][::-1]
        devices = sender.device, receiver.device
        local = devices[0] == devices[1]
        link = Link() if local else links.get(devices) or links[devices[::-1]]
        return ChannelTiming(
            sender=sender.index,
            receiver=receiver.index,
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
            )
            for program, each in zip(programs, seconds, strict=True)
        ),
        channels={
            ChannelKey(edge, direction): channel(edge, direction) for direction in get_args(Direction) for edge in ends
        },
        links=links,
    )

"""What the operations of a stage ask about it, found once: the ends of its channels, whether it reads samples, how it reads messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, get_args

from attrs import frozen

from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import Channel, ChannelKey, Edge
from petra_graph.program.schedule import Verb
from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.transport.channel import LocalChannel, Receiver, Sender
from petra_graph.runtime.transport.process_channels import ProcessChannels


class Incoming(NamedTuple):
    """The receiving end of a channel at its stage."""

    key: ChannelKey
    receiver: Receiver
    moves: bool
    """Messages may come from another device than the stage's."""
    streams: int


@frozen(kw_only=True, eq=False)
class StagePorts:
    """What a stage's operations ask about the stage, found once."""

    incoming: Mapping[Verb, Sequence[Incoming]]
    outgoing: Mapping[Verb, Mapping[Edge, tuple[ChannelKey, Sender]]]
    waits: Mapping[Verb, Sequence[Callable[[], object]]]
    """Each returns something true when a message is there, or room for one; a queue within the process always has room."""
    leases: bool
    """A message may lie in a slot."""
    reads_samples: bool
    reads: Sequence[Edge]
    """Those from the samples."""
    holds_head: bool
    reads_in_place: bool
    keeps_nothing: bool


def ports_of(program: StageProgram, channels: ProcessChannels) -> StagePorts:
    def incoming(verb: Verb) -> Sequence[Incoming]:
        own = [one for one in program.channels if (one.receiver, one.key.direction) == (program.index, verb)]
        return [Incoming(one.key, channels.receivers[one.key], _moves(one), one.streams) for one in own]

    def _moves(channel: Channel) -> bool:
        within = isinstance(channels.receivers[channel.key], LocalChannel)
        source = channels.programs[channel.sender - 1].device if within else "cpu"
        return source != program.device

    def outgoing(verb: Verb) -> Mapping[Edge, tuple[ChannelKey, Sender]]:
        own = [one for one in program.channels if (one.sender, one.key.direction) == (program.index, verb)]
        return {one.key.edge: (one.key, channels.senders[one.key]) for one in own}

    verbs = get_args(Verb)
    receives, sends = {verb: incoming(verb) for verb in verbs}, {verb: outgoing(verb) for verb in verbs}
    return StagePorts(
        incoming=receives,
        outgoing=sends,
        waits={
            verb: [
                *(end.receiver.ready for end in receives[verb]),
                *(sender.has_room for _, sender in sends[verb].values() if not isinstance(sender, LocalChannel)),
            ]
            for verb in verbs
        },
        leases=any(end.receiver.leases for ends in receives.values() for end in ends),
        reads_samples=reads_samples(program),
        reads=[edge for edge in program.receives if edge.producer == INPUT],
        holds_head=program.holds_head,
        reads_in_place=reads_in_place(program),
        keeps_nothing=keeps_nothing(program),
    )


def reads_in_place(program: StageProgram) -> bool:
    """Whether a stage is done with what it received before it needs many messages more.

    A stage that keeps inputs for several micro-batches copies them out of their slots, of which there are few.
    """
    return keeps_nothing(program) or program.depth == 1


def keeps_nothing(program: StageProgram) -> bool:
    """Whether a stage holds nothing between a forward and its backward."""
    return all(segment.kind == "reversible" and segment.keeps == "nothing" for segment in program.segments)


def reads_samples(program: StageProgram) -> bool:
    return any(edge.producer == INPUT for edge in program.receives)

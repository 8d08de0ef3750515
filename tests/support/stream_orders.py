"""What each process enqueues on its streams where messages go from device to device, and receives are posted ahead of them.

`device_channel` posts none ahead, and has a proof of its own.

    stream               operations                                                waits, through events, for
    compute              all operations of the process's stages, in their order    the messages that it reads; and, before it writes
                                                                                   a message into a slot, for the one that was there
    of each sender       the sends of its channel                                  the operation that wrote the message
    of each receiver     the receives of its channel, `capacity` posted ahead      the operations that used the slot

Every channel between two processes has a communicator of its own. Two stages on two processes under `1f1b`, capacity 2, in the order in
which each process enqueues; r receives and s sends, ' is a message to the producer:

    process 0   r0' r1' F0 s0 F1 s1 B0 U F2 s2 r2' B1 U B2 U
    process 1   r0 r1 F0 B0 s0' U r2 F1 B1 s1' U F2 B2 s2' U

Decision: this order is the strictest that a transport may have. A sender has one slot, and a slot is received into as late as may be:
just before the next message of its channel is read. A transport with more slots, or one that posts receives sooner, waits for less.

Proof that no such order stands still, for any number of micro-batches and any stages in any processes. Take the one order of all
operations of `program.schedule.static_order`. Put message m of a channel, its send and its receive as one, behind the later of two
operations: the one that sends m, and the one that precedes, in its process, the one that reads m - capacity + 1. Then everything comes
after all that it waits for:

1. An operation that reads m comes after the one that sends m, and is the one that reads m - capacity + 1, or comes after it.
2. An operation that sends m + 1 comes after the one that sends m. As there is room for m + 1, it also comes after the one that reads
   m + 1 - capacity. So m has left the sender's slot.
3. Messages of a channel keep their order, and no two channels share a stream or a communicator.

`deadlock` finds out the same of any given orders.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from attrs import define, field, frozen

from petra_graph.program.channels import Channel, ChannelKey
from petra_graph.program.schedule import Action, Verb
from petra_graph.program.stage_program import StageProgram

COMPUTE = "compute"
"""The stream of all operations of a process's stages."""


@frozen(kw_only=True)
class StreamOperation:
    """One operation that a process enqueues."""

    kind: Literal["compute", "send", "receive"]
    stage: int
    """The index of the stage that computes, sends or receives."""
    action: Action
    """What the stage computes; of a message, the operation that sends it."""
    stream: str
    """One of the process's streams, each of which does its operations one after another."""
    channel: ChannelKey | None = None
    """The message's; None: the stage computes."""
    communicator: str | None = None
    """The message's. It connects two processes, and does what each of them enqueues one after another, whatever the stream."""
    after: tuple[int, ...] = ()
    """Places in this process's order, all before this one, whose events the operation waits for."""


Orders = Mapping[int, Sequence[StreamOperation]]
"""By rank, what the process enqueues, in its order."""


def stream_orders(
    programs: Sequence[StageProgram], ranks: Sequence[int], actions: Iterable[tuple[int, Action]]
) -> Orders:
    """Return what each process enqueues between two drains, or in an evaluation.

    Args:
        programs: of all stages.
        ranks: the process of each stage.
        actions: of all stages in one order, each with its stage's index: `static_order`, of a resumed run without what precedes the
            cut, or `static_evaluation_order`.
    """
    actions = list(actions)
    done = defaultdict[tuple[int, Verb], list[Action]](list)
    for stage, action in actions:
        done[stage, action.verb].append(action)
    channels = {channel.key: channel for program in programs for channel in program.channels}
    processes = {rank: _Process() for rank in sorted(set(ranks))}
    reads, sends = (defaultdict[tuple[int, Verb], list[_Messages]](list) for _ in range(2))
    for channel in channels.values():
        if ranks[channel.sender - 1] == ranks[channel.receiver - 1]:
            continue
        direction = channel.key.direction
        messages = _Messages(channel, done[channel.sender, direction])
        sends[channel.sender, direction].append(messages)
        reads[channel.receiver, direction].append(messages)
        for number in range(channel.capacity):
            processes[ranks[channel.receiver - 1]].receive(messages, number)
    for stage, action in actions:
        processes[ranks[stage - 1]].compute(stage, action, reads[stage, action.verb], sends[stage, action.verb])
    return {rank: process.order for rank, process in processes.items()}


@define(eq=False)
class _Messages:
    """The messages of a channel in their order, and where their receives and sends stand."""

    channel: Channel
    senders: Sequence[Action]
    """The operation that sends each; their micro-batches are consecutive."""
    received: list[int] = field(factory=list)
    """The place of each receive in the receiver's order."""
    sent: list[int] = field(factory=list)
    """The place of each send in the sender's order."""

    def number(self, action: Action) -> int:
        """Return the number of an operation's message; below 0 where it was in flight at the cut from which the run continues."""
        return action.micro_batch - self.senders[0].micro_batch if self.senders else -1


@define(eq=False)
class _Process:
    order: list[StreamOperation] = field(factory=list)
    computed: tuple[int, ...] = ()
    """The place of the latest operation of a stage, if there is one."""

    def receive(self, messages: _Messages, number: int) -> None:
        if number < len(messages.senders):
            messages.received.append(len(self.order))
            self._message("receive", messages, messages.senders[number])

    def compute(self, stage: int, action: Action, reads: Sequence[_Messages], sends: Sequence[_Messages]) -> None:
        after: list[int] = []
        for messages in reads:
            if (number := messages.number(action)) >= 0:
                after.append(messages.received[number])
            if number > 0:
                self.receive(messages, number - 1 + messages.channel.capacity)
        after += [place for messages in sends for place in messages.sent[-1:]]
        self.computed = (len(self.order),)
        self.order.append(
            StreamOperation(kind="compute", stage=stage, action=action, stream=COMPUTE, after=tuple(after))
        )
        for messages in sends:
            messages.sent.append(len(self.order))
            self._message("send", messages, action)

    def _message(self, kind: Literal["send", "receive"], messages: _Messages, action: Action) -> None:
        channel, name = messages.channel, str(messages.channel)
        self.order.append(
            StreamOperation(
                kind=kind,
                stage=channel.sender if kind == "send" else channel.receiver,
                action=action,
                stream=f"{kind} on {name}",
                channel=channel.key,
                communicator=name,
                after=self.computed,
            )
        )

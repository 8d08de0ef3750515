"""A stage of this process at work: what each of its operations reads, computes and sends, and its place in its order.

Everything that an operation asks about is found when a training or an evaluation begins; an operation looks up nothing by name.

    samples, targets --> [ feed ] --> first stage ... head's stage
    channels --> [ receive, bring to the device ] --> [ executor ] --> [ send ] --> channels
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from petra_graph.executor.encoded import EncodedTensors
from petra_graph.executor.head import HeadResult
from petra_graph.executor.stage import BackwardMessage, StageExecutor
from petra_graph.graph.node_graph import INPUT
from petra_graph.plugins.tensor_trees import Tree, inputs_of
from petra_graph.program.channels import ChannelKey, Direction, Edge
from petra_graph.program.cut import Cut
from petra_graph.program.schedule import Action, Verb, program_order
from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.channels import LocalChannel, Sender, moved
from petra_graph.runtime.open_channels import ProcessChannels

MicroBatch = tuple[Tree, Tree]
"""Samples [n, *shape] and targets [n], on the CPU; several inputs are in a dictionary, several targets in a tuple or a dictionary."""
ObserveMessage = Callable[[int, ChannelKey, int, EncodedTensors], None]
"""Called with a stage's index, a channel, a micro-batch and the message."""
_ONE = torch.ones(1, dtype=torch.float64)
"""The weight of most micro-batches, as it travels."""


class Batches(Protocol):
    """Evaluation batches whose sizes are known before they are loaded."""

    @property
    def sizes(self) -> Sequence[int]:
        """Samples of each batch."""
        ...

    def __iter__(self) -> Iterator[MicroBatch]: ...


class Feed:
    """What the stages of this process read of the data: samples for the first one, targets for the head's."""

    def __init__(self, executors: Sequence[StageExecutor]) -> None:
        self.source: Iterator[MicroBatch] = iter(())
        self.reads_samples = any(edge.producer == INPUT for one in executors for edge in one.program.receives)
        self.holds_head = any(one.program.holds_head for one in executors)
        self.targets: deque[Tree] = deque()
        """Of micro-batches on their way to the head, where that is in this process."""


class Incoming(NamedTuple):
    """The receiving end of a channel."""

    key: ChannelKey
    receive: Callable[[], EncodedTensors]
    device: torch.device | None
    """To which messages are brought; None: they come from there."""
    streams: int


class StageAtWork:
    """A stage of this process."""

    def __init__(self, executor: StageExecutor, channels: ProcessChannels, feed: Feed) -> None:
        program = executor.program
        self.executor, self.index, self.device = executor, program.index, torch.device(program.device)
        self.on_device = current_device(self.device)
        """The context of the stage's operations; None: they need none."""
        self.forwards = 0
        """Since this process's start: what `stop_at` counts; evaluations count too, but with replicas."""
        self.samples = [edge for edge in program.receives if edge.producer == INPUT]
        self.tallies: dict[str, list[float]] = {}
        """Number and seconds of the operations, by kind."""
        self.next: Action | None = None
        self._actions: Iterator[Action] = iter(())
        self._channels, self._feed = channels, feed
        self._opens_source = bool(self.samples) or (program.holds_head and not feed.reads_samples)
        self._observe: ObserveMessage | None = None
        self.begin(iter(()))

    def begin(self, actions: Iterator[Action], observe_message: ObserveMessage | None = None) -> None:
        """Stand before the first of these operations, with the ends of the channels as they are now.

        Args:
            observe_message: called with every backward message that the stage receives.
        """
        channels, program = self._channels, self.executor.program
        self.incoming: dict[Direction, list[Incoming]] = {"forward": [], "backward": []}
        self._send: dict[Direction, dict[Edge, Callable[[EncodedTensors], None]]] = {"forward": {}, "backward": {}}
        waits: dict[Verb, list[tuple[ChannelKey, Callable[[], object]]]] = {verb: [] for verb in _VERBS}
        for channel in program.channels:
            key, direction = channel.key, channel.key.direction
            if channel.receiver == self.index:
                end = channels.receivers[key]
                source = channels.programs[channel.sender - 1].device if channels.is_local(key) else "cpu"
                device = None if source == program.device else self.device
                self.incoming[direction].append(Incoming(key, end.receive, device, channel.streams))
                waits[direction].append((key, end.ready))
            if channel.sender == self.index:
                sender: Sender = channels.senders[key]
                self._send[direction][key.edge] = sender.send
                if not isinstance(sender, LocalChannel):  # a queue within the process always has room
                    waits[direction].append((key, sender.has_room))
        self._waits = waits
        self.waits: Mapping[Verb, Sequence[Callable[[], object]]] = {
            verb: [ready for _, ready in of_verb] for verb, of_verb in waits.items()
        }
        """Each returns something true when a message is there, or room for one."""
        self._observe, self._actions = observe_message, actions
        self.advance()

    def advance(self) -> None:
        self.next = next(self._actions, None)

    def tally(self, operation: str) -> list[float]:
        """Return what each operation of a kind is added to: their number and their seconds."""
        return self.tallies.setdefault(operation, [0, 0.0])

    def awaited(self, action: Action) -> list[ChannelKey]:
        """Return the channels on which an operation waits: for a message, or for room."""
        return [key for key, ready in self._waits[action.verb] if not ready()]

    def forward(self, micro_batch: int | None) -> HeadResult | None:
        """Receive, run the stage, and send; without a micro-batch for an evaluation. Return the head's result."""
        feed, received = self._feed, dict[Edge, EncodedTensors]()
        if self._opens_source:
            samples, targets = next(feed.source)
            for edge in self.samples:
                received[edge] = moved(inputs_of(samples), self.device)
            if feed.holds_head:
                feed.targets.append(targets)
        for key, receive, device, _ in self.incoming["forward"]:
            received[key.edge] = receive() if device is None else moved(receive(), device)
        executor = self.executor
        target = feed.targets.popleft() if executor.program.holds_head else None
        if micro_batch is None:
            sent, result = executor.evaluate(received, target)
        else:
            sent, result = executor.forward(micro_batch, received, target)
        for edge, message in sent.items():
            self._send["forward"][edge](message)
        return result

    def backward(self, micro_batch: int) -> None:
        """Receive, differentiate the stage, and send."""
        messages: dict[Edge, BackwardMessage] = {}
        for key, receive, device, streams in self.incoming["backward"]:
            *carried, weight = receive()
            tensors = tuple(carried) if device is None else moved(tuple(carried), device)
            del carried  # else the messages would outlive their use
            if self._observe is not None:
                self._observe(self.index, key, micro_batch, (*tensors, weight))
            # `item` would be an operation of torch.
            share = 1.0 if weight is _ONE else float(cast(Tensor, weight).numpy()[0])
            messages[key.edge] = BackwardMessage(tensors[:streams], tensors[streams:] or None, share)
            del tensors
        for edge, message in self.executor.backward(micro_batch, messages).items():
            weight = _ONE if message.weight == 1.0 else torch.tensor([message.weight], dtype=torch.float64)
            self._send["backward"][edge]((*message.gradients, *(message.activation or ()), weight))

    def measured(self) -> Mapping[str, Any]:
        """Return the operations since this process's start as JSON: by kind, how many there were and their seconds."""
        return {
            operation: {"operations": count, "seconds": round(total, 6)}
            for operation, (count, total) in self.tallies.items()
            if count
        }


_VERBS: tuple[Verb, ...] = ("forward", "backward", "update")


def training_order(program: StageProgram, cut: Cut) -> Iterator[Action]:
    """Return a stage's operations behind a cut."""
    actions = program_order(program, cut.micro_batches, cut.filled)
    if cut.at == cut.micro_batches.start:
        return actions
    return (action for action in actions if not cut.precedes(program, action))


def current_device(device: torch.device) -> AbstractContextManager[object] | None:
    """Return a context in which a stage's GPU is torch's current one, on which kernels of other packages are launched; None for a processor."""
    return torch.cuda.device(device) if device.type == "cuda" else None

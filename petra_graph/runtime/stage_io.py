"""A stage of this process at work: what each of its operations reads, computes and sends, and its place in its order.

Everything that an operation asks about is found when a training or an evaluation begins; an operation looks up nothing by name.

    samples, targets --> [ feed ] --> first stage ... head's stage
    channels --> [ receive, bring to the device ] --> [ executor ] --> [ send ] --> channels
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from attrs import evolve
from torch import Tensor

from petra_graph.executor.encoded import EncodedTensors
from petra_graph.executor.head import HeadResult
from petra_graph.executor.stage import StageExecutor
from petra_graph.graph.node_graph import INPUT
from petra_graph.plugins.tensor_trees import Tree, inputs_of
from petra_graph.program.channels import ChannelKey, Direction, Edge
from petra_graph.program.cut import Cut
from petra_graph.program.schedule import Action, Verb, program_order
from petra_graph.runtime.channels import LocalChannel, PutBack, moved
from petra_graph.runtime.open_channels import ProcessChannels
from petra_graph.runtime.replicas import Replicas

MicroBatch = tuple[Tree, Tree]
"""Samples [n, *shape] and targets [n], on the CPU; several inputs are in a dictionary, several targets in a tuple or a dictionary."""
Observer = Callable[[HeadResult], None]
_ONE = torch.ones(1, dtype=torch.float64)
"""The weight of most micro-batches, as it travels."""


class CutObserver(Protocol):
    """Sees stages come to cuts, and messages arrive that were in flight there."""

    def due(self, micro_batch: int) -> bool: ...

    def reached(self, executor: StageExecutor, cut: Cut) -> None: ...

    def received(self, key: ChannelKey, micro_batch: int, message: EncodedTensors) -> None: ...


class Feed:
    """What the stages of this process read of the data: samples for the first one, targets for the head's."""

    def __init__(self, executors: Sequence[StageExecutor]) -> None:
        self.source: Iterator[MicroBatch] = iter(())
        self.reads_samples = any(edge.producer == INPUT for one in executors for edge in one.program.receives)
        self.holds_head = any(one.program.holds_head for one in executors)
        self.targets: deque[Tree] = deque()
        """Of micro-batches on their way to the head, where that is in this process."""


Incoming = tuple[ChannelKey, Callable[[], EncodedTensors], torch.device | None]
"""Of the receiving end of a channel: what receives, and the device to which messages are brought; None: they come from there."""


class Awaited(NamedTuple):
    """What an operation waits for: a message, room for one, or gradients of other replicas."""

    ready: Callable[[], bool]
    """Returns whether it has come."""
    what: str
    outside: bool
    """Whether it comes from another process."""


class Operation(NamedTuple):
    """All operations of one kind of a stage."""

    perform: Callable[[int], HeadResult | None]
    """Does the one on a micro-batch."""
    waits: Sequence[Awaited]
    ready: Sequence[Callable[[], bool]]
    """Of all these, as the scheduler asks before each operation."""
    tally: list[float]
    """Number and seconds of those that were done."""


class StageAtWork:
    """A stage of this process."""

    operations: Mapping[Verb, Operation]
    next: Action | None
    """None: the stage is at the end of its order."""
    actions: Iterator[Action]
    """Those behind it."""

    def __init__(self, executor: StageExecutor, channels: ProcessChannels, feed: Feed) -> None:
        program = executor.program
        self.executor, self.index, self.device = executor, program.index, torch.device(program.device)
        self.forwards = 0
        """Since this process's start: what `stop_at` counts; evaluations count too, but with replicas."""
        self.samples = [edge for edge in program.receives if edge.producer == INPUT]
        self.tallies: dict[str, list[float]] = {}
        """Number and seconds of the operations, by kind."""
        self.done: Action | None = None
        """The latest operation."""
        self.norm: Tensor | None = None
        """Of all stages' gradients, where they are clipped by one."""
        self._weights: deque[float] = deque()
        """Of the targets of micro-batches between the head's forward and backward, by which gradients are multiplied (`HeadResult.weight`)."""
        self._channels, self._feed, self._holds_head = channels, feed, program.holds_head
        self._opens_source = bool(self.samples) or (program.holds_head and not feed.reads_samples)
        self._observe: Observer | None = None
        self._cuts: CutObserver | None = None
        self._cut: Cut | None = None
        """Where the present training began; None: this is an evaluation."""
        self.begin_evaluation(range(0))

    def begin_training(
        self, cut: Cut, observe: Observer | None, cuts: CutObserver | None, replicas: Replicas | None
    ) -> None:
        """Stand behind a cut.

        Args:
            observe: called with the head's results; None: nobody asks for metrics.
            cuts: observes cuts, and every backward message that the stage receives.
            replicas: whose gradients an update waits for.
        """
        self._cut, self._observe, self._cuts = cut, observe, cuts
        executor, program = self.executor, self.executor.program
        executor.updater.filled(cut.filled)
        if executor.head is not None:
            executor.head.measures = observe is not None
        actions = program_order(program, cut.micro_batches, cut.filled)
        if cut.at != cut.micro_batches.start:
            actions = (action for action in actions if not cut.precedes(program, action))
        self._begin(actions, {"forward": self.forward, "backward": self.backward, "update": self.update}, replicas)

    def begin_evaluation(self, batches: range) -> None:
        self._cut = self._cuts = None
        self._begin((Action("forward", batch) for batch in batches), {"forward": self.forward})

    def _begin(
        self,
        actions: Iterator[Action],
        perform: Mapping[Verb, Callable[[int], HeadResult | None]],
        replicas: Replicas | None = None,
    ) -> None:
        """Stand before the first of these operations, with the ends of the channels as they are now."""
        channels, program = self._channels, self.executor.program
        self.incoming: dict[Direction, list[Incoming]] = {"forward": [], "backward": []}
        self._send: dict[Direction, dict[Edge, Callable[[EncodedTensors], None]]] = {"forward": {}, "backward": {}}
        waits = defaultdict[Verb, list[Awaited]](list)
        if replicas is not None:
            others = Awaited(partial(replicas.ready, self.index), "the gradients of other replicas", outside=True)
            waits["update"].append(others)
        for channel in program.channels:
            key, direction = channel.key, channel.key.direction
            outside = not channels.is_local(key)
            if channel.receiver == self.index:
                end = channels.receivers[key]
                # What a checkpoint had in flight comes from the host, and so do messages of other processes.
                here = not outside and not isinstance(end, PutBack)
                source = channels.programs[channel.sender - 1].device if here else "cpu"
                self.incoming[direction].append((key, end.receive, None if source == program.device else self.device))
                waits[direction].append(Awaited(end.ready, str(key), outside))
            if channel.sender == self.index:
                sender = channels.senders[key]
                self._send[direction][key.edge] = sender.send
                if not isinstance(sender, LocalChannel):  # a queue within the process always has room
                    waits[direction].append(Awaited(sender.ready, str(key), outside))
        self.operations = {
            verb: Operation(
                self._on_device(do),
                waits[verb],
                [awaited.ready for awaited in waits[verb]],
                self.tallies.setdefault("evaluation" if self._cut is None else verb, [0, 0.0]),
            )
            for verb, do in perform.items()
        }
        self.actions, self.next = actions, next(actions, None)

    def _on_device(self, perform: Callable[[int], HeadResult | None]) -> Callable[[int], HeadResult | None]:
        if (on_device := current_device(self.device)) is None:
            return perform

        def there(micro_batch: int) -> HeadResult | None:
            with on_device:
                return perform(micro_batch)

        return there

    def awaited(self, action: Action) -> list[Awaited]:
        """Return what an operation still waits for."""
        return [awaited for awaited in self.operations[action.verb].waits if not awaited.ready()]

    # --- operations ---------------------------------------------------------------------------------------------------

    def forward(self, micro_batch: int) -> HeadResult | None:
        """Receive, run the stage, and send; in a training the head's result is observed, in an evaluation it is returned."""
        if self._cuts is not None and self._cut is not None and self._cuts.due(micro_batch):
            self._cuts.reached(self.executor, evolve(self._cut, at=micro_batch))
        feed, received, evaluates = self._feed, dict[Edge, EncodedTensors](), self._cut is None
        if self._opens_source:
            samples, targets = next(feed.source)
            for edge in self.samples:
                received[edge] = moved(inputs_of(samples), self.device)
            if feed.holds_head:
                feed.targets.append(targets)
            del samples, targets  # else they would outlive their use
        for key, receive, device in self.incoming["forward"]:
            received[key.edge] = receive() if device is None else moved(receive(), device)
        target = feed.targets.popleft() if self._holds_head else None
        sent, result = self.executor.forward(None if evaluates else micro_batch, received, target)
        for edge, message in sent.items():
            self._send["forward"][edge](message)
        if evaluates:
            return result
        self.forwards += 1
        if result is not None:
            self._weights.append(result.weight / result.samples)
            if self._observe is not None:
                self._observe(result)
        return None

    def backward(self, micro_batch: int) -> None:
        """Receive, differentiate the stage, and send; the weight of the micro-batch's targets goes along with each message."""
        received: dict[Edge, EncodedTensors] = {}
        weight: Any = _ONE
        if self._holds_head and (share := self._weights.popleft()) != 1.0:
            weight = torch.tensor([share], dtype=torch.float64)
        for key, receive, device in self.incoming["backward"]:
            message = receive()
            if self._cuts is not None:
                self._cuts.received(key, micro_batch, message)
            weight, streams = message[-1], message[:-1]
            received[key.edge] = streams if device is None else moved(streams, device)
            del message, streams  # else they would outlive their use
        # `item` would be an operation of torch.
        share = 1.0 if weight is _ONE else float(weight.numpy()[0])
        for edge, sent in self.executor.backward(micro_batch, received, share).items():
            self._send["backward"][edge]((*sent, weight))
        # Half as often as the head's loss is read, which says more of the same failure.
        if (interval := self.executor.updater.read_interval) > 1 and (micro_batch + 1) % (2 * interval) == 0:
            self.executor.check()

    def update(self, _: int) -> None:
        self.executor.update(self.norm)


def current_device(device: torch.device) -> AbstractContextManager[object] | None:
    """Return a context in which a stage's GPU is torch's current one, on which kernels of other packages are launched; None for a processor."""
    return torch.cuda.device(device) if device.type == "cuda" else None

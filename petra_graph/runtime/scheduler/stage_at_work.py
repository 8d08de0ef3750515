"""A stage of this process at work: its place in its order of operations, its channels, its device, and the failure of an operation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, get_args

import attrs
import torch
from attrs import define, field

from petra_graph.errors import Interrupted, PetraGraphError, RunFailed, raised_text
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import Channel, ChannelKey, Edge
from petra_graph.program.cut import Cut
from petra_graph.program.schedule import Action, Verb, program_order
from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.control.failure import OperationStatus
from petra_graph.runtime.control.run_store import StoreGone
from petra_graph.runtime.control.supervisor import Supervisor
from petra_graph.runtime.control.watchdog import Failed
from petra_graph.runtime.transport.channel import LocalChannel, Receiver, Sender
from petra_graph.runtime.transport.process_channels import ProcessChannels


class Incoming(NamedTuple):
    """The receiving end of a channel at its stage."""

    key: ChannelKey
    receiver: Receiver
    moves: bool
    """Messages may come from another device than the stage's."""
    streams: int


@define(kw_only=True, eq=False)
class StageAtWork:
    """A stage, with what its operations ask about it, found once."""

    executor: StageExecutor
    index: int
    """Of the stage, from 1."""
    device: torch.device
    on_device: AbstractContextManager[object] | None
    """The context of the stage's operations; None: they need none."""
    incoming: Mapping[Verb, Sequence[Incoming]]
    outgoing: Mapping[Verb, Mapping[Edge, tuple[ChannelKey, Sender]]]
    waits: Mapping[Verb, Sequence[Callable[[], object]]]
    """Each returns something true when a message is there, or room for one; a queue within the process always has room."""
    leases: bool
    """A message may lie in a slot."""
    samples: Sequence[Edge]
    """The edges from the samples."""
    holds_head: bool
    keeps_nothing: bool
    """Whether the stage holds nothing between a forward and its backward."""
    reads_in_place: bool
    """Whether it is done with what it received before it needs many messages more: if it keeps inputs for several micro-batches, it copies
    them out of their slots, of which there are few."""
    forwards: int = 0
    """Since this process's start: what `stop_at` counts; evaluations count too, but with replicas."""
    actions: Iterator[Action] = iter(())
    next: Action | None = None

    def begin(self, actions: Iterator[Action]) -> None:
        """Stand before the first of these operations."""
        self.actions = actions
        self.advance()

    def advance(self) -> None:
        self.next = next(self.actions, None)


@define
class StatusReporter:
    """Sets the status of this process."""

    supervisor: Supervisor
    channels: ProcessChannels
    rank: int
    micro_batches: range = range(0)
    """Between two drains, or an evaluation's batches."""
    filled: int = 0
    """The forward before which the pipeline filled again."""
    evaluates: bool = False

    def begin(self, micro_batches: range, filled: int = 0, *, evaluates: bool = False) -> None:
        """Report what follows as training on these micro-batches, or as an evaluation of these batches."""
        self.micro_batches, self.filled, self.evaluates = micro_batches, filled, evaluates

    def works(self, stage: StageAtWork, action: Action) -> None:
        """Report that a stage begins an operation."""
        self.supervisor.status = self._status(stage, action)

    def task(self, stage: StageAtWork, action: Action) -> str:
        """Return an operation as people read it."""
        return self._status(stage, action).task

    def waits(self, stage: StageAtWork, action: Action, awaited: str, ranks: Iterable[int]) -> None:
        """Report that a stage waits, and since when.

        Args:
            ranks: the processes that could end its wait.
        """
        status, before = self._status(stage, action), self.supervisor.status
        if before is not None and before.channel == awaited and before.micro_batch == status.micro_batch:
            status = attrs.evolve(status, since=before.since)
        others = tuple(rank for rank in ranks if rank != self.rank)
        self.supervisor.status = attrs.evolve(status, channel=awaited, waits_for=others)

    def waits_for_messages(self, awaited: Sequence[tuple[StageAtWork, Action, Sequence[ChannelKey]]]) -> None:
        """Report that each of some stages waits on channels: of one that waits for another process, if there is one."""
        outside = [[key for key in keys if self._peer(key) != self.rank] for *_, keys in awaited]
        at = max(range(len(awaited)), key=lambda at: (bool(outside[at]), at))
        stage, action, keys = awaited[at]
        peers = sorted({self._peer(key) for keys in outside for key in keys})
        self.waits(stage, action, ", ".join(map(str, outside[at] or keys)), peers)

    def ends(self) -> None:
        """Report that no stage does anything."""
        self.supervisor.status, self.evaluates = None, False

    def _peer(self, key: ChannelKey) -> int:
        return self.channels.peer(key, self.rank)

    def _status(self, stage: StageAtWork, action: Action) -> OperationStatus:
        return OperationStatus(
            program=stage.executor.program,
            operation="evaluation" if self.evaluates else action.verb,
            micro_batch=action.micro_batch,
            micro_batches=self.micro_batches,
            filled=self.filled,
            since=time.monotonic(),
        )


@define
class OperationSeconds:
    """Counts and sums by stage and kind of operation."""

    _sums: dict[tuple[int, str], list[float]] = field(factory=dict, init=False)

    def tally(self, stage: int, operation: str) -> list[float]:
        """Return what the scheduler adds each operation of a stage to: their number and their seconds; stages count from 1."""
        return self._sums.setdefault((stage, operation), [0, 0.0])

    def of_stage(self, stage: int) -> Mapping[str, Any]:
        """Return a stage's operations as JSON: by kind, how many there were and their seconds."""
        return {
            operation: {"operations": count, "seconds": round(total, 6)}
            for (index, operation), (count, total) in self._sums.items()
            if index == stage and count
        }


def stage_at_work(executor: StageExecutor, channels: ProcessChannels) -> StageAtWork:
    program, device = executor.program, torch.device(executor.program.device)

    def moves(channel: Channel) -> bool:
        within = isinstance(channels.receivers[channel.key], LocalChannel)
        source = channels.programs[channel.sender - 1].device if within else "cpu"
        return source != program.device

    incoming: dict[Verb, list[Incoming]] = {verb: [] for verb in get_args(Verb)}
    outgoing: dict[Verb, dict[Edge, tuple[ChannelKey, Sender]]] = {verb: {} for verb in get_args(Verb)}
    for channel in program.channels:
        key, direction = channel.key, channel.key.direction
        if channel.receiver == program.index:
            incoming[direction].append(Incoming(key, channels.receivers[key], moves(channel), channel.streams))
        if channel.sender == program.index:
            outgoing[direction][key.edge] = key, channels.senders[key]
    keeps_nothing = all(segment.kind == "reversible" and segment.keeps == "nothing" for segment in program.segments)
    return StageAtWork(
        executor=executor,
        index=program.index,
        device=device,
        on_device=current_device(device),
        incoming=incoming,
        outgoing=outgoing,
        waits={
            verb: [
                *(end.receiver.ready for end in incoming[verb]),
                *(sender.has_room for _, sender in outgoing[verb].values() if not isinstance(sender, LocalChannel)),
            ]
            for verb in get_args(Verb)
        },
        leases=any(end.receiver.leases for ends in incoming.values() for end in ends),
        samples=[edge for edge in program.receives if edge.producer == INPUT],
        holds_head=program.holds_head,
        keeps_nothing=keeps_nothing,
        reads_in_place=keeps_nothing or program.depth == 1,
    )


def training_order(program: StageProgram, cut: Cut) -> Iterator[Action]:
    """Return a stage's operations behind a cut."""
    actions = program_order(program, cut.micro_batches, cut.filled)
    if cut.at == cut.micro_batches.start:
        return actions
    return (action for action in actions if not cut.precedes(program, action))


def current_device(device: torch.device) -> AbstractContextManager[object] | None:
    """Return a context in which a stage's GPU is torch's current one, on which kernels of other packages are launched; None for a processor."""
    return torch.cuda.device(device) if device.type == "cuda" else None


def named_failure(error: BaseException, executor: StageExecutor, operation: str) -> BaseException:
    """Return what to raise for an error of a stage's operation: one that names both, unless it says where it comes from.

    A block that calls sys.exit() fails as well, and does not end the program.
    """
    if isinstance(error, PetraGraphError | Interrupted | Failed | StoreGone | KeyboardInterrupt | GeneratorExit):
        return error
    program = executor.program
    nodes = ", ".join(program.nodes)
    message = f"stage {program.index} ({nodes}) failed in the {operation}: {raised_text(error)}"
    return RunFailed(message, hint="failure.txt in the run directory has the traceback")

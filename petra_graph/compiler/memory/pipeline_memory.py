"""The bytes of every stage or device at its largest moment, from executing the order of operations that the runtimes execute.

    order      `program.schedule`, in the rounds of a single process
    operations as `executor` performs them, with tensors as numbers of bytes (`stage_memory`, `segment_memory`)
    sizes      `program.node_costs`, which come from running the executor's segments

A device holds the tensors of its stages, one of which works at a time. A message to another device is copied: the received
tensor belongs to the receiver's device, and the sent one stays on the sender's until it is received. A message to a stage of
the same device is not copied: it waits in a queue, and where a stage stores it or sends it on it is one tensor, counted once.

The number of messages that wait on a channel depends on the order in which stages take turns. Under `arrival` every stage
does its next operation as soon as it can, in rounds from the head to the first stage, as the scheduler of a single process
does; `static` is `program.schedule.static_order`.

Decision: no formula. Depth times bytes is the size of the buffers, but the largest moment also has messages on channels,
the results of a backward, and tensors that are two things at once (a coupling sends the stream that it stores); every
formula that was exact for one method was off by a fifth for another.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import ceil, inf

from petra_graph.compiler.memory.live_tensors import LiveTensors, Streams, TooFull
from petra_graph.compiler.memory.segment_memory import EncodedShare
from petra_graph.compiler.memory.stage_memory import Message, StageMemory
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import ChannelKey
from petra_graph.program.node_costs import CostTable
from petra_graph.program.schedule import Action, Policy, Verb, program_order, static_order
from petra_graph.program.stage_bytes import StageBytes
from petra_graph.program.stage_program import StageProgram

_WINDOWS = 3
"""Windows of accumulation beyond those."""


def stage_memory(
    programs: Sequence[StageProgram],
    costs: CostTable,
    *,
    micro_batches: int | None = None,
    transport: EncodedShare | None = None,
) -> tuple[StageBytes, ...]:
    """Return every stage's memory at its largest moment, in the programs' order, as if each had a device of its own, without its libraries'.

    Args:
        micro_batches: between two drains; None: enough for every stage to reach its largest moment.
        transport: the share of bytes in which tensors wait and travel; None: all.
    """
    pipeline = PipelineMemory(programs, costs, transport)
    pipeline.execute("arrival", micro_batches or _enough(programs))
    return tuple(stage.live.peak for stage in pipeline.stages.values())


def device_memory(
    programs: Sequence[StageProgram],
    costs: CostTable,
    *,
    policy: Policy = "arrival",
    micro_batches: int | None = None,
    transport: EncodedShare | None = None,
    most: Mapping[str, float] | None = None,
) -> Mapping[str, StageBytes]:
    """Return the memory of every device that hosts a stage, at the device's largest moment.

    Args:
        policy: the order in which the stages of a device take turns; nothing else depends on it.
        micro_batches: as in `stage_memory`.
        transport: as in `stage_memory`.
        most: bytes of each device beyond which nothing more is counted: then some device has more than that in the result,
            and others less than they would hold.
    """
    count = micro_batches or _enough(programs)
    hosted = Counter(program.device for program in programs)
    limit = dict.fromkeys(hosted, inf) | dict(most or {})
    libraries = transport.libraries if transport else 0
    live = {device: LiveTensors(most=limit[device], libraries=libraries) for device in hosted}
    alone = {device for device, stages in hosted.items() if policy == "static" and stages == 1}
    turns: tuple[tuple[Policy, set[str]], ...] = (("arrival", alone), (policy, hosted.keys() - alone))
    with suppress(TooFull):
        for one, counted in turns:
            if counted:
                of_stage = {
                    program.index: live[program.device] if program.device in counted else LiveTensors()
                    for program in programs
                }
                PipelineMemory(programs, costs, transport, of_stage).execute(one, count)
    return {device: one.peak for device, one in live.items()}


def _enough(programs: Sequence[StageProgram]) -> int:
    """Return micro-batches between two drains with which everything reaches its largest moment."""
    stored = any(segment.backward == "stored" for program in programs for segment in program.segments)
    # Where older parameters are kept, twice as many: each micro-batch in flight may use a version of its own.
    fills = 2 if stored else 1
    return fills * max(program.depth for program in programs) + _WINDOWS * programs[0].accumulation


class PipelineMemory:
    """All stages, and the messages between them."""

    def __init__(
        self,
        programs: Sequence[StageProgram],
        costs: CostTable,
        transport: EncodedShare | None = None,
        live: Mapping[int, LiveTensors] | None = None,
    ) -> None:
        """Begin with parameters alone.

        Args:
            transport: the share of bytes in which tensors wait and travel; None: all.
            live: of each stage's device, by the stage's index; None: every stage has a device of its own.
        """
        share = transport or EncodedShare()
        if live is None:
            live = {program.index: LiveTensors() for program in programs}
        self.programs = programs
        self.stages = {program.index: StageMemory(program, costs, share, live[program.index]) for program in programs}
        self._reads_samples = {
            program.index for program in programs if any(edge.producer == INPUT for edge in program.receives)
        }
        self._head = next((program.index for program in programs if program.holds_head), None)
        self._target_bytes = ceil(share.targets * costs.target_bytes)
        self._targets: deque[Streams] = deque()
        """On their way to the head, where that is on the device of the samples."""
        channels = {channel.key: channel for program in programs for channel in program.channels}
        self._messages: dict[ChannelKey, deque[Message]] = {key: deque() for key in channels}
        """On each channel."""
        self._receives: dict[tuple[int, Verb], list[ChannelKey]] = defaultdict(list)
        """The channels that an operation reads, by the stage's index."""
        for key, channel in channels.items():
            self._receives[channel.receiver, key.direction].append(key)

    def execute(self, policy: Policy, micro_batches: int) -> None:
        """Execute all operations between two drains."""
        if policy == "arrival":
            every = range(micro_batches)
            self.run([program_order(one, every) for one in self.programs])
            return
        for index, action in static_order(self.programs, range(micro_batches)):
            self.perform(index, action)

    def run(self, orders: Sequence[Iterator[Action]]) -> None:
        """Execute all operations in rounds, each stage in its own order, until the pipeline has drained."""
        following = dict(
            reversed([(stage, next(actions, None)) for stage, actions in zip(self.stages, orders, strict=True)])
        )
        of_stage = dict(zip(self.stages, orders, strict=True))
        while following:
            progressed = False
            for stage, action in list(following.items()):
                if action is None:
                    del following[stage]
                elif all(self._messages[key] for key in self._receives[stage, action.verb]):
                    self.perform(stage, action)
                    following[stage] = next(of_stage[stage], None)
                    progressed = True
            assert progressed or not any(following.values()), "every stage waits: depths grow along an edge"

    def perform(self, index: int, action: Action) -> None:
        """Execute one operation of a stage, whose messages have been sent."""
        stage, verb = self.stages[index], action.verb
        if verb == "update":
            stage.update()
            return
        arrived = {key.edge: self._messages[key].popleft() for key in self._receives[index, verb]}
        if verb == "forward":
            if index in self._reads_samples and self._targets_wait(stage):
                self._targets.append(stage.live.allocate([self._target_bytes]))
            sent = stage.forward(action.micro_batch, arrived)
            if index == self._head and self._targets:
                stage.live.drop(self._targets.popleft())
        else:
            sent = stage.backward(action.micro_batch, arrived)
        for edge, message in sent.items():
            self._messages[ChannelKey(edge, verb)].append(message)

    def _targets_wait(self, stage: StageMemory) -> bool:
        """Whether the targets that a stage's samples come with wait on its device for another stage, the head's."""
        if self._head is None or self._head == stage.program.index:
            return False
        return self.stages[self._head].live is stage.live

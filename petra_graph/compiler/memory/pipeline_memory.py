"""The bytes of every stage at its largest moment, from executing the order of operations that the runtimes execute.

    order      `program.schedule`, in the rounds of a single process
    operations as `executor` performs them, with tensors as numbers of bytes (`stage_memory`, `segment_memory`)
    sizes      `program.costs`, which come from running the executor's segments

Every stage is taken to have a device of its own: a received tensor is its own copy, and a sent one stays its own until it
is received. The number of messages that wait on a channel depends on timing; here every stage does its next operation as
soon as it can, as the scheduler of a single process does.

Decision: no formula. Depth times bytes is the size of the buffers, but the largest moment also has messages on channels,
the results of a backward, and tensors that are two things at once (a coupling sends the stream that it stores); every
formula that was exact for one method was off by a fifth for another.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from petra_graph.compiler.memory.segment_memory import EncodedShare
from petra_graph.compiler.memory.stage_memory import Message, StageMemory
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import Direction, Edge
from petra_graph.program.costs import CostTable
from petra_graph.program.cut import Cut
from petra_graph.program.memory import StageBytes, summed
from petra_graph.program.schedule import Action, Verb, order
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
    """Return every stage's memory at its largest moment, in the programs' order.

    Args:
        programs: all stages.
        costs: every node's.
        micro_batches: between two drains; None: enough for every stage to reach its largest moment.
        transport: the share of bytes in which tensors wait and travel; None: all.
    """
    if micro_batches is None:
        stored = any(segment.backward == "stored" for program in programs for segment in program.segments)
        # Where older parameters are kept, twice as many: each micro-batch in flight may use a version of its own.
        fills = 2 if stored else 1
        micro_batches = fills * max(program.depth for program in programs) + _WINDOWS * programs[0].accumulation
    pipeline = _Pipeline(programs, costs, transport or EncodedShare())
    pipeline.run(
        [order(program.depth, range(micro_batches), program.accumulation, program.flush) for program in programs]
    )
    return tuple(stage.live.peak for stage in pipeline.stages)


def memory_after_operations(
    programs: Sequence[StageProgram],
    costs: CostTable,
    operations: Iterable[tuple[int, Action]],
    *,
    transport: EncodedShare | None = None,
) -> Iterator[StageBytes]:
    """Yield, after each operation, the bytes that its stage holds.

    Args:
        programs: all stages.
        costs: every node's.
        operations: each with its stage's index, every one after those whose messages it reads.
        transport: the share of bytes in which tensors wait and travel; None: all.
    """
    pipeline = _Pipeline(programs, costs, transport or EncodedShare())
    stage_of = {stage.program.index: stage for stage in pipeline.stages}
    for index, action in operations:
        pipeline.perform(action, stage_of[index])
        yield stage_of[index].live.now()


def bytes_at_cut(
    programs: Sequence[StageProgram], costs: CostTable, cut: Cut, *, transport: EncodedShare | None = None
) -> int:
    """Return the bytes that all stages hold at a cut and need behind it, with the backward messages in flight."""
    pipeline = _Pipeline(programs, costs, transport or EncodedShare())
    pipeline.run([_before(cut, program) for program in programs])
    held = [stage.live.now() for stage in pipeline.stages]
    return pipeline.bytes_in_flight() + sum(
        stage.parameters + stage.optimizer + stage.gradients + stage.parameter_buffer + stage.input_buffer
        for stage in held
    )


def _before(cut: Cut, program: StageProgram) -> Iterator[Action]:
    actions = order(program.depth, cut.micro_batches, program.accumulation, program.flush)
    return (action for action in actions if cut.precedes(program, action))


def device_memory(programs: Sequence[StageProgram], stages: Sequence[StageBytes]) -> Mapping[str, StageBytes]:
    """Return the sum over each device's stages: a bound from above, as `summed` says."""
    hosted: dict[str, list[StageBytes]] = {}
    for program, stage in zip(programs, stages, strict=True):
        hosted.setdefault(program.device, []).append(stage)
    return {device: summed(stages) for device, stages in hosted.items()}


class _Pipeline:
    """All stages, and the messages between them."""

    def __init__(self, programs: Sequence[StageProgram], costs: CostTable, share: EncodedShare) -> None:
        self.stages = [StageMemory(program, costs, share) for program in programs]
        self._sizes = {INPUT: (costs.sample_bytes,)} | {name: node.output_bytes for name, node in costs.nodes.items()}
        self._messages: dict[Direction, defaultdict[Edge, deque[tuple[StageMemory, Message]]]] = {
            "forward": defaultdict(deque),
            "backward": defaultdict(deque),
        }
        """On each channel, with their senders."""

    def run(self, orders: Sequence[Iterator[Action]]) -> None:
        """Execute all operations in rounds, each stage in its own order, until the pipeline has drained."""
        following = [next(actions, None) for actions in orders]
        while any(following):
            progressed = False
            for stage in reversed(range(len(self.stages))):
                action = following[stage]
                if action is not None and self._ready(action.verb, self.stages[stage].program):
                    self.perform(action, self.stages[stage])
                    following[stage] = next(orders[stage], None)
                    progressed = True
            assert progressed, "no stage can go on: depths grow along an edge"

    def bytes_in_flight(self) -> int:
        """Return the bytes of the backward messages that no stage has received."""
        messages = (message for channel in self._messages["backward"].values() for _, message in channel)
        return sum(stream.size for message in messages for stream in message.streams)

    def _ready(self, verb: Verb, program: StageProgram) -> bool:
        if verb == "update":
            return True
        edges, messages = program.receives if verb == "forward" else program.sends, self._messages[verb]
        return all(edge.producer == INPUT or messages[edge] for edge in edges)

    def perform(self, action: Action, stage: StageMemory) -> None:
        """Execute one operation, whose messages have been sent."""
        program = stage.program
        match action.verb:
            case "forward":
                for edge in program.receives:
                    if edge.producer != INPUT:
                        self._receive(edge, "forward")
                sizes = {edge: self._sizes[edge.producer] for edge in program.receives}
                self._send(stage, "forward", stage.forward(action.micro_batch, sizes))
            case "backward":
                received = {edge: self._receive(edge, "backward") for edge in program.sends}
                sizes = {edge: self._sizes[edge.producer] for edge in received}
                activated = {edge for edge, message in received.items() if message.activation is not None}
                self._send(stage, "backward", stage.backward(action.micro_batch, sizes, activated))
            case "update":
                stage.update()

    def _send(self, stage: StageMemory, direction: Direction, messages: Mapping[Edge, Message]) -> None:
        for edge, message in messages.items():
            self._messages[direction][edge].append((stage, message))

    def _receive(self, edge: Edge, direction: Direction) -> Message:
        """Take a message from a channel, and free its sender's tensors."""
        sender, message = self._messages[direction][edge].popleft()
        sender.live.drop(message.streams, "channels")
        return message

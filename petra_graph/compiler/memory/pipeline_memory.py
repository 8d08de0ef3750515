"""What every stage holds at most, found by going through the very order of operations that the runtimes execute.

    where      the order of `program.schedule`, turn by turn as the inline runtime gives them
    what       each operation as `executor` does it, with tensors as numbers of bytes (`stage_books`, `cell_books`)
    how much   `program.costs`, which comes from running the executor's cells

Every stage is taken to have a device of its own: what it receives is its own copy, and what it has sent is its own until it
is received. What waits on a wire depends on who goes when; these are the inline runtime's turns, where every stage
does its next operation as soon as it can.

Decision: no formula. Depth times bytes is what buffers hold, but the largest moment also has what is on the wires, what
a backward returns, and tensors that are two things at once (a coupling sends the stream that it stores); every formula
that was exact for one method was off by a fifth for another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from attrs import define

from petra_graph.compiler.memory.segment_memory import EncodedShare
from petra_graph.compiler.memory.stage_memory import Message, StageMemory
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import Edge
from petra_graph.program.costs import CostTable
from petra_graph.program.memory import StageBytes, summed
from petra_graph.program.schedule import Action, order
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
        transport: in how many bytes tensors wait and travel; None: as they are.
    """
    if micro_batches is None:
        stored = any(segment.backward == "stored" for program in programs for segment in program.segments)
        # Where older parameters are kept, as many again as are in flight: each of these may have seen its own.
        fills = 2 if stored else 1
        micro_batches = fills * max(program.depth for program in programs) + _WINDOWS * programs[0].accumulation
    pipeline = _Pipeline(
        books=[StageMemory(program, costs, transport or EncodedShare()) for program in programs],
        turns=[order(program.depth, range(micro_batches), program.accumulation, program.flush) for program in programs],
        costs=costs,
    )
    pipeline.run()
    return tuple(books.ledger.peak for books in pipeline.books)


def device_memory(programs: Sequence[StageProgram], stages: Sequence[StageBytes]) -> Mapping[str, StageBytes]:
    """Return the sum over each device's stages: a bound from above, as `summed` says."""
    hosted: dict[str, list[StageBytes]] = {}
    for program, stage in zip(programs, stages, strict=True):
        hosted.setdefault(program.device, []).append(stage)
    return {device: summed(stages) for device, stages in hosted.items()}


@define
class _Sent:
    """A message on a wire, in its sender's books."""

    sender: StageMemory
    message: Message

    def received(self) -> Message:
        self.sender.ledger.drop(self.message.streams, "channels")
        return self.message


class _Pipeline:
    """All stages, in turns."""

    def __init__(self, books: Sequence[StageMemory], turns: Sequence[Iterator[Action]], costs: CostTable) -> None:
        self.books = books
        self._turns = turns
        self._sample_sizes = (costs.sample_bytes,)
        self._sizes = {name: node.output_bytes for name, node in costs.nodes.items()}
        edges = {edge for one in books for edge in one.program.receives}
        self._forward: Mapping[Edge, deque[_Sent]] = {edge: deque() for edge in edges}
        self._backward: Mapping[Edge, deque[_Sent]] = {edge: deque() for edge in edges}

    def run(self) -> None:
        """Go on until the pipeline has drained."""
        waiting = [next(turn, None) for turn in self._turns]
        while any(waiting):
            progressed = False
            for stage in reversed(range(len(self.books))):
                action = waiting[stage]
                if action is not None and self._ready(action, self.books[stage].program):
                    self._perform(action, self.books[stage])
                    waiting[stage] = next(self._turns[stage], None)
                    progressed = True
            assert progressed, "no stage can go on: depths grow along an edge"

    def _ready(self, action: Action, program: StageProgram) -> bool:
        if action.verb == "forward":
            return all(edge.producer == INPUT or self._forward[edge] for edge in program.receives)
        return action.verb == "update" or all(self._backward[edge] for edge in program.sends)

    def _perform(self, action: Action, books: StageMemory) -> None:
        program = books.program
        match action.verb:
            case "forward":
                arrived = {edge: self._arrived(edge) for edge in program.receives}
                for edge, message in books.forward(action.micro_batch, arrived).items():
                    self._forward[edge].append(_Sent(books, message))
            case "backward":
                returned = {edge: self._backward[edge].popleft().received() for edge in program.sends}
                sizes = {edge: self._sizes[edge.producer] for edge in returned}
                activated = {edge for edge, message in returned.items() if message.activation is not None}
                for edge, message in books.backward(action.micro_batch, sizes, activated).items():
                    self._backward[edge].append(_Sent(books, message))
            case "update":
                books.update()

    def _arrived(self, edge: Edge) -> Sequence[int]:
        if edge.producer == INPUT:
            return self._sample_sizes
        self._forward[edge].popleft().received()
        return self._sizes[edge.producer]

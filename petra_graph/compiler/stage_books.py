"""One stage's forward, backward and update, in bytes: what `executor.stage` and `executor.cells` do, with no tensor.

Names and order are those of the executor, so that the two can be read side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil

from attrs import field, frozen

from petra_graph.compiler.ledger import Held, Ledger
from petra_graph.graph.stage_graph import INPUT
from petra_graph.program.costs import CostTable, NodeCost, Work
from petra_graph.program.stage_program import Edge, Segment, StageProgram

Streams = list[Held]


@frozen(kw_only=True)
class Transport:
    """How many bytes remain of one, where tensors wait or travel in a smaller type or on another device."""

    buffer: float = 1.0
    """Of an input that waits for its backward, on the stage's own device; 0: it waits elsewhere."""
    sample_buffer: float = 1.0
    """The same of samples."""
    wire: float = 1.0
    """Of what crosses between stages."""


@frozen
class Message:
    """What a stage sends along an edge."""

    gradients: Streams
    """Or, forward, the streams themselves."""
    activation: Streams | None = None

    @property
    def streams(self) -> Streams:
        """All tensors in it."""
        return [*self.gradients, *(self.activation or ())]


@frozen
class _Graph:
    """A kept graph: of each node what went in, what came out, and what lies between."""

    inputs: list[Streams] = field(factory=list)
    outputs: list[Streams] = field(factory=list)
    between: list[Streams] = field(factory=list)


class StageBooks:
    """A stage between two drains."""

    def __init__(self, program: StageProgram, costs: CostTable, transport: Transport) -> None:
        self.program = program
        self.ledger = Ledger(
            parameters=sum(
                costs.nodes[name].parameter_bytes + costs.nodes[name].statistics_bytes for name in program.nodes
            )
        )
        self._nodes: Mapping[str, NodeCost] = {name: costs.nodes[name] for name in program.nodes}
        self._transport = transport
        self._inside = frozenset(program.nodes)
        self._versions = _Versions(program, self._nodes, self.ledger)
        self._with_gradient: set[str] = set()
        self._buffers: dict[tuple[str, int], Streams] = {}
        self._graphs: dict[tuple[str, int], _Graph] = {}
        self._pending: dict[int, tuple[Streams, Streams]] = {}

    def forward(self, micro_batch: int, arrived: Mapping[Edge, Sequence[int]]) -> dict[Edge, Message]:
        """Do the forward; `arrived` has the sizes of what each edge brought."""
        received = {edge: self._received(sizes, edge) for edge, sizes in arrived.items()}
        sent: dict[Edge, Message] = {}
        self._versions.begin(micro_batch)
        for segment in self.program.segments:
            inputs = [stream for entry in segment.inputs for stream in received.pop(entry.edge)]
            outputs = self._run_forward(segment, micro_batch, inputs)
            for edge in segment.outputs:
                if edge.consumer in self._inside:
                    self.ledger.hold(outputs)
                    received[edge] = outputs
                else:
                    sent[edge] = Message(self._sent(outputs))
            self.ledger.drop(outputs)
            self.ledger.drop(inputs)
        return sent

    def backward(
        self, micro_batch: int, arrived: Mapping[Edge, Sequence[int]], activated: Collection[Edge]
    ) -> dict[Edge, Message]:
        """Do the backward; messages along the edges in `activated` had the activation beside the gradient."""
        received = {
            edge: Message(self._received(sizes, edge), self._received(sizes, edge) if edge in activated else None)
            for edge, sizes in arrived.items()
        }
        sent: dict[Edge, Message] = {}
        # Local variables of the executor live until the next segment's replace them.
        found: Streams = []
        given: Streams = []
        for segment in reversed(self.program.segments):
            messages = [received.pop(edge) for edge in segment.outputs]
            gradients = self._summed([message.gradients for message in messages])
            outputs = next((message.activation for message in messages if message.activation is not None), [])
            self.ledger.hold(outputs)
            for message in messages:
                self.ledger.drop(message.streams)
            self.ledger.drop(given)
            given = [*gradients, *outputs]
            inputs, through = self._run_backward(segment, micro_batch, outputs, gradients)
            self.ledger.drop(found)
            found = [*inputs, *through]
            first = 0
            for entry in segment.inputs:
                own = slice(first, first := first + entry.streams)
                if entry.edge.producer == INPUT:
                    continue
                activation = inputs[own] if entry.returns_activation else None
                if entry.edge.producer in self._inside:
                    message = Message(through[own], activation)
                    self.ledger.hold(message.streams)
                    received[entry.edge] = message
                else:
                    sent[entry.edge] = Message(
                        self._sent(through[own]), None if activation is None else self._sent(activation)
                    )
        self.ledger.drop([*given, *found])
        self._versions.end(micro_batch)
        return sent

    def update(self) -> None:
        """Do the optimizer's step."""
        self._versions.before_step()
        self.ledger.fixed["optimizer"] = sum(node.optimizer_bytes for node in self._nodes.values())
        self.ledger.see(max(node.work["update"].working_bytes for node in self._nodes.values()))
        self._with_gradient.clear()
        self.ledger.fixed["gradients"] = 0

    def _run_forward(self, segment: Segment, micro_batch: int, inputs: Streams) -> Streams:
        """Return the outputs, held once."""
        if segment.kind == "head":
            (name,) = segment.nodes
            self._differentiated(name, self._nodes[name].work["learn"])
            gradients = self._results(self._nodes[name].work["learn"], inputs, self._nodes[name].input_bytes)
            self.ledger.hold(inputs)
            self._pending[micro_batch] = inputs, gradients
            return []
        if segment.keeps == "graph":
            if segment.backward == "stored":
                self._versions.keep()
            graph = self._recorded(segment.nodes, inputs)
            self._graphs[segment.nodes[0], micro_batch] = graph
            self.ledger.hold(graph.outputs[-1])
            return graph.outputs[-1]
        if segment.keeps == "input":
            self._buffers[segment.nodes[0], micro_batch] = self._buffered(segment, inputs)
        return self._run_without_graph(segment.nodes, inputs)

    def _run_without_graph(self, nodes: Iterable[str], streams: Streams) -> Streams:
        before: Streams = []
        for name in nodes:
            node = self._nodes[name]
            self.ledger.see(node.work["forward"].working_bytes)
            streams = self._results(node.work["forward"], streams, node.output_bytes)
            self.ledger.drop(before)
            before = streams
        return streams

    def _run_backward(
        self, segment: Segment, micro_batch: int, outputs: Streams, gradients: Streams
    ) -> tuple[Streams, Streams]:
        """Return the input and its gradient, each held once."""
        at = segment.nodes[0], micro_batch
        if segment.kind == "head":
            return self._pending.pop(micro_batch)
        stored = segment.backward == "stored" and self._versions.stale(micro_batch)
        match segment.keeps:
            case "graph":
                graph = self._graphs.pop(at)
                self.ledger.hold(graph.inputs[0])
                return graph.inputs[0], self._replayed(
                    segment.nodes, graph, gradients, stored=segment.backward == "stored"
                )
            case "input":
                inputs = self._restored(segment, self._buffers.pop(at))
                return inputs, self._rerun(segment.nodes, inputs, gradients, stored=stored)
            case "nothing" if stored:
                (name,) = segment.nodes
                node = self._nodes[name]
                self.ledger.see(node.work["invert"].working_bytes)
                inputs = self._results(node.work["invert"], outputs, node.input_bytes)
                return inputs, self._rerun(segment.nodes, inputs, gradients, stored=True)
            case "nothing":
                (name,) = segment.nodes
                node = self._nodes[name]
                self._differentiated(name, node.work["reverse"])
                both = self._results(
                    node.work["reverse"], [*outputs, *gradients], (*node.input_bytes, *node.input_bytes)
                )
                return both[: len(node.input_bytes)], both[len(node.input_bytes) :]

    def _rerun(self, nodes: Sequence[str], inputs: Streams, gradients: Streams, *, stored: bool) -> Streams:
        if len(nodes) > 1:
            return self._replayed(nodes, self._recorded(nodes, inputs), gradients, stored=stored)
        node = self._nodes[nodes[0]]
        self._differentiated(nodes[0], node.work["rerun"], stored=stored)
        return self._results(node.work["rerun"], [*gradients, *inputs], node.input_bytes)

    def _recorded(self, nodes: Iterable[str], streams: Streams) -> _Graph:
        graph = _Graph()
        for name in nodes:
            node = self._nodes[name]
            work = node.work["record"]
            self.ledger.see(work.working_bytes)
            graph.inputs.append(streams)
            self.ledger.hold(streams, "graphs")
            streams = self._results(work, streams, node.output_bytes)
            self.ledger.hold(streams, "graphs")
            self.ledger.drop(streams)
            graph.outputs.append(streams)
            graph.between.append(self.ledger.made([work.kept_bytes], "graphs"))
        return graph

    def _replayed(self, nodes: Sequence[str], graph: _Graph, gradients: Streams, *, stored: bool) -> Streams:
        through = gradients
        self.ledger.hold(through)
        for name, inputs, outputs, between in reversed(
            list(zip(nodes, graph.inputs, graph.outputs, graph.between, strict=True))
        ):
            node = self._nodes[name]
            self._differentiated(name, node.work["replay"], stored=stored)
            before = through
            through = self._results(node.work["replay"], [*before, *inputs], node.input_bytes)
            self.ledger.drop(before)
            for streams in (inputs, outputs, between):
                self.ledger.drop(streams, "graphs")
        return through

    def _differentiated(self, name: str, work: Work, *, stored: bool = False) -> None:
        """Differentiate a node; gradients at stored parameters are made anew, and then handed or added to the live ones."""
        first = name not in self._with_gradient
        self.ledger.see(work.working_bytes if first or stored else work.accumulating_bytes)
        if first:
            self._with_gradient.add(name)
            self.ledger.fixed["gradients"] += self._nodes[name].gradient_bytes

    def _summed(self, gradients: list[Streams]) -> Streams:
        if len(gradients) < 2:  # noqa: PLR2004  one is no sum
            streams = gradients[0] if gradients else []
            self.ledger.hold(streams)
            return streams
        sizes = [stream.size for stream in gradients[0]]
        # A sum of three has that of two beside it.
        self.ledger.see(sum(sizes) + (max(sizes, default=0) if len(gradients) > 2 else 0))  # noqa: PLR2004
        return self.ledger.made(sizes)

    def _results(self, work: Work, arguments: Streams, sizes: Sequence[int]) -> Streams:
        """Return what an operation gives, held once."""
        streams = [
            Held(size) if share is None else arguments[share] for share, size in zip(work.shares, sizes, strict=True)
        ]
        self.ledger.hold(streams)
        return streams

    def _buffered(self, segment: Segment, inputs: Streams) -> Streams:
        left = self._buffer_share(segment)
        if left == 1:
            self.ledger.hold(inputs, "input_buffer")
            return inputs
        return self.ledger.made([ceil(left * stream.size) for stream in inputs], "input_buffer")

    def _restored(self, segment: Segment, kept: Streams) -> Streams:
        if self._buffer_share(segment) == 1:
            self.ledger.hold(kept)
            inputs = kept
        else:
            inputs = self.ledger.made([size for name in segment.nodes[:1] for size in self._nodes[name].input_bytes])
            self.ledger.see()
        self.ledger.drop(kept, "input_buffer")
        return inputs

    def _buffer_share(self, segment: Segment) -> float:
        samples = any(entry.edge.producer == INPUT for entry in segment.inputs)
        return self._transport.sample_buffer if samples else self._transport.buffer

    def _received(self, sizes: Sequence[int], edge: Edge) -> Streams:
        streams = self.ledger.made(sizes)
        encoded = edge.producer != INPUT and self._transport.wire != 1
        self.ledger.see(ceil(self._transport.wire * sum(sizes)) if encoded else 0)
        return streams

    def _sent(self, streams: Streams) -> Streams:
        if self._transport.wire == 1:
            self.ledger.hold(streams, "wires")
            return streams
        encoded = self.ledger.made([ceil(self._transport.wire * stream.size) for stream in streams], "wires")
        self.ledger.see()
        return encoded


class _Versions:
    """`executor.versions` in bytes: how many copies of a stage's parameters there are."""

    def __init__(self, program: StageProgram, nodes: Mapping[str, NodeCost], ledger: Ledger) -> None:
        self._ledger = ledger
        self._bytes = sum(
            nodes[name].parameter_bytes
            for segment in program.segments
            if segment.backward == "stored" and segment.kind != "head"
            for name in segment.nodes
        )
        self._current = 0
        self._copies: set[int] = set()
        self._seen: dict[int, int] = {}
        self._users: Counter[int] = Counter()

    def begin(self, micro_batch: int) -> None:
        self._seen[micro_batch] = self._current
        self._users[self._current] += 1

    def end(self, micro_batch: int) -> None:
        version = self._seen.pop(micro_batch)
        self._users[version] -= 1
        if not self._users[version]:
            del self._users[version]
            self._copies.discard(version)
            self._count()

    def before_step(self) -> None:
        if self._users[self._current]:
            self.keep()
        self._current += 1

    def keep(self) -> None:
        """Copy the current version."""
        self._copies.add(self._current)
        self._count()

    def stale(self, micro_batch: int) -> bool:
        """Whether an update has come since the micro-batch's forward."""
        return self._seen[micro_batch] != self._current

    def _count(self) -> None:
        self._ledger.fixed["parameter_buffer"] = len(self._copies) * self._bytes

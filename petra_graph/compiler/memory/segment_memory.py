"""One segment's passes in bytes: what `executor.segment_runners` does, with no tensor.

Names and order are those of the cells, so that the two can be read side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from attrs import field, frozen

from petra_graph.compiler.memory.live_tensors import LiveTensor, LiveTensors
from petra_graph.compiler.memory.weight_versions import WeightVersions
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.costs import NodeCost, Work
from petra_graph.program.stage_program import Segment

Streams = list[LiveTensor]


@frozen(kw_only=True)
class EncodedShare:
    """How many bytes remain of one, where tensors wait or travel in a smaller type or on another device."""

    buffer: float = 1.0
    """Of an input that waits for its backward, on the stage's own device; 0: it waits elsewhere."""
    sample_buffer: float = 1.0
    """The same of samples."""
    wire: float = 1.0
    """Of what crosses between stages."""


@frozen
class _Graph:
    """A kept graph: of each node what went in, what came out, and what lies between."""

    inputs: list[Streams] = field(factory=list)
    outputs: list[Streams] = field(factory=list)
    between: list[Streams] = field(factory=list)


class SegmentMemory:
    """The segments of one stage."""

    def __init__(
        self, nodes: Mapping[str, NodeCost], ledger: LiveTensors, versions: WeightVersions, transport: EncodedShare
    ) -> None:
        self.ledger = ledger
        self._nodes = nodes
        self._versions = versions
        self._transport = transport
        self._with_gradient: set[str] = set()
        self._buffers: dict[tuple[str, int], Streams] = {}
        self._graphs: dict[tuple[str, int], _Graph] = {}
        self._pending: dict[int, tuple[Streams, Streams]] = {}

    def forget_gradients(self) -> None:
        """Free them, after an update."""
        self._with_gradient.clear()
        self.ledger.fixed["gradients"] = 0

    def forward(self, segment: Segment, micro_batch: int, inputs: Streams) -> Streams:
        """Return the outputs, held once."""
        if segment.kind == "head":
            (name,) = segment.nodes
            self._differentiated(name, self._nodes[name].work["forward_backward"])
            gradients = self._results(self._nodes[name].work["forward_backward"], inputs, self._nodes[name].input_bytes)
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

    def backward(
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
                kept = self._buffers.pop(at)
                inputs = self._restored(segment, kept)
                if inputs is not kept:
                    self.ledger.drop(kept, "input_buffer")
                through = self._rerun(segment.nodes, inputs, gradients, stored=stored)
                if inputs is kept:
                    self.ledger.drop(kept, "input_buffer")
                return inputs, through
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
        self._differentiated(nodes[0], node.work["recompute"], stored=stored)
        return self._results(node.work["recompute"], [*gradients, *inputs], node.input_bytes)

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

    def _results(self, work: Work, arguments: Streams, sizes: Sequence[int]) -> Streams:
        """Return what an operation gives, held once."""
        streams = [
            LiveTensor(size) if share is None else arguments[share]
            for share, size in zip(work.shares, sizes, strict=True)
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
            return kept  # It counts as buffered until it has been used.
        inputs = self.ledger.made(self._nodes[segment.nodes[0]].input_bytes)
        self.ledger.see()
        return inputs

    def _buffer_share(self, segment: Segment) -> float:
        samples = any(entry.edge.producer == INPUT for entry in segment.inputs)
        return self._transport.sample_buffer if samples else self._transport.buffer

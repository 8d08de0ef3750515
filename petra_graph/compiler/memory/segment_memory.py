"""The passes of one stage's segments in bytes: the operations of `executor.runners`, without tensors.

Names and order are those of the segment runners, so that the two can be read side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from attrs import field, frozen

from petra_graph.compiler.memory.live_tensors import LiveTensor, LiveTensors, Streams
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.node_costs import NodeCost, Work
from petra_graph.program.stage_program import Segment
from petra_graph.program.weight_versions import WeightVersions


@frozen(kw_only=True)
class EncodedShare:
    """The share of a tensor's bytes that remains where it waits or travels in a smaller type or on another device."""

    buffer: float = 1.0
    """Of an input that waits for its backward, on the stage's own device; 0: it waits elsewhere."""
    sample_buffer: float = 1.0
    """The same of samples."""
    channel: float = 1.0
    """Of messages between stages."""
    targets: float = 1.0
    """Of targets that wait for the head on the device that reads the samples; 0: they wait elsewhere."""
    libraries: int = 0
    """Bytes that a device's libraries keep from their first operation on."""


@frozen
class _RecordedGraph:
    """A kept graph: for each node its inputs, its outputs, and the tensors saved between them."""

    inputs: list[Streams] = field(factory=list)
    outputs: list[Streams] = field(factory=list)
    between: list[Streams] = field(factory=list)


class SegmentMemory:
    """The segments of one stage."""

    def __init__(
        self, nodes: Mapping[str, NodeCost], live: LiveTensors, versions: WeightVersions[Streams], share: EncodedShare
    ) -> None:
        self.live = live
        self._nodes = nodes
        self._versions = versions
        self._share = share
        self._with_gradient: set[str] = set()
        self._buffers: dict[tuple[str, int], Streams] = {}
        self._graphs: dict[tuple[str, int], _RecordedGraph] = {}
        self._pending: dict[int, tuple[Streams, Streams]] = {}

    def forget_gradients(self) -> None:
        """Free the gradients, after an update."""
        self.live.add("gradients", -sum(self._nodes[name].gradient_bytes for name in self._with_gradient))
        self._with_gradient.clear()

    def forward(self, segment: Segment, micro_batch: int, inputs: Streams) -> Streams:
        """Return the outputs of a segment's forward, held once."""
        if segment.kind == "head":
            (name,) = segment.nodes
            self._differentiated(name, self._nodes[name].work["forward_backward"])
            gradients = self._results(self._nodes[name].work["forward_backward"], inputs, self._nodes[name].input_bytes)
            self.live.hold(inputs)
            self._pending[micro_batch] = inputs, gradients
            return []
        if segment.keeps == "graph":
            if segment.backward == "stored":
                self._versions.copy_for(micro_batch)
            graph = self._recorded(segment.nodes, inputs)
            self._graphs[segment.nodes[0], micro_batch] = graph
            self.live.hold(graph.outputs[-1])
            return graph.outputs[-1]
        if segment.keeps == "input":
            self._buffers[segment.nodes[0], micro_batch] = self._buffered(segment, inputs)
        return self._run_without_graph(segment.nodes, inputs)

    def _run_without_graph(self, nodes: Iterable[str], streams: Streams) -> Streams:
        before: Streams = []
        for name in nodes:
            node = self._nodes[name]
            self.live.update_peak(node.work["forward"].working_bytes)
            streams = self._results(node.work["forward"], streams, node.output_bytes)
            self.live.drop(before)
            before = streams
        return streams

    def backward(
        self, segment: Segment, micro_batch: int, outputs: Streams, gradients: Streams
    ) -> tuple[Streams, Streams]:
        """Return the input and its gradient from a segment's backward, each held once."""
        at = segment.nodes[0], micro_batch
        if segment.kind == "head":
            return self._pending.pop(micro_batch)
        stored = segment.backward == "stored" and self._versions.older(micro_batch) is not None
        match segment.keeps:
            case "graph":
                graph = self._graphs.pop(at)
                self.live.hold(graph.inputs[0])
                return graph.inputs[0], self._replayed(
                    segment.nodes, graph, gradients, stored=segment.backward == "stored"
                )
            case "input":
                kept = self._buffers.pop(at)
                inputs = self._restored(segment, kept)
                if inputs is not kept:
                    self.live.drop(kept, "input_buffer")
                through = self._rerun(segment.nodes, inputs, gradients, stored=stored)
                if inputs is kept:
                    self.live.drop(kept, "input_buffer")
                return inputs, through
            case "nothing" if stored:
                (name,) = segment.nodes
                node = self._nodes[name]
                self.live.update_peak(node.work["invert"].working_bytes)
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

    def _recorded(self, nodes: Iterable[str], streams: Streams) -> _RecordedGraph:
        graph = _RecordedGraph()
        for name in nodes:
            node = self._nodes[name]
            work = node.work["record"]
            self.live.update_peak(work.working_bytes)
            graph.inputs.append(streams)
            self.live.hold(streams, "graphs")
            streams = self._results(work, streams, node.output_bytes)
            self.live.hold(streams, "graphs")
            self.live.drop(streams)
            graph.outputs.append(streams)
            graph.between.append(self.live.allocate([work.kept_bytes], "graphs"))
        return graph

    def _replayed(self, nodes: Sequence[str], graph: _RecordedGraph, gradients: Streams, *, stored: bool) -> Streams:
        through = gradients
        self.live.hold(through)
        for name, inputs, outputs, between in reversed(
            list(zip(nodes, graph.inputs, graph.outputs, graph.between, strict=True))
        ):
            node = self._nodes[name]
            self._differentiated(name, node.work["replay"], stored=stored)
            before = through
            through = self._results(node.work["replay"], [*before, *inputs], node.input_bytes)
            self.live.drop(before)
            for streams in (inputs, outputs, between):
                self.live.drop(streams, "graphs")
        return through

    def _differentiated(self, name: str, work: Work, *, stored: bool = False) -> None:
        """Differentiate a node; gradients at stored parameters are new tensors, which are then handed or added to the live ones."""
        first = name not in self._with_gradient
        self.live.update_peak(work.working_bytes if first or stored else work.accumulating_bytes)
        if first:
            self._with_gradient.add(name)
            self.live.add("gradients", self._nodes[name].gradient_bytes)

    def _results(self, work: Work, arguments: Streams, sizes: Sequence[int]) -> Streams:
        """Return the results of an operation, held once."""
        known = list(arguments)
        for share, size in zip(work.shares, sizes, strict=True):
            known.append(LiveTensor(size) if share is None else known[share])
        streams = known[len(arguments) :]
        self.live.hold(streams)
        return streams

    def _buffered(self, segment: Segment, inputs: Streams) -> Streams:
        share = self._buffer_share(segment)
        if share == 1:
            self.live.hold(inputs, "input_buffer")
            return inputs
        return self.live.allocate([ceil(share * stream.size) for stream in inputs], "input_buffer")

    def _restored(self, segment: Segment, kept: Streams) -> Streams:
        if self._buffer_share(segment) == 1:
            self.live.hold(kept)
            return kept  # It counts as buffered until the backward has used it.
        inputs = self.live.allocate(self._nodes[segment.nodes[0]].input_bytes)
        self.live.update_peak()
        return inputs

    def _buffer_share(self, segment: Segment) -> float:
        samples = any(entry.edge.producer == INPUT for entry in segment.inputs)
        return self._share.sample_buffer if samples else self._share.buffer

"""One stage's forward, backward and update in bytes: the operations of `executor.stage`, without tensors.

Names and order are those of the executor, so that the two can be read side by side.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil

from attrs import frozen

from petra_graph.compiler.memory.live_tensors import LiveTensors, Streams
from petra_graph.compiler.memory.segment_memory import EncodedShare, SegmentMemory
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import Edge
from petra_graph.program.costs import CostTable, NodeCost
from petra_graph.program.stage_program import StageProgram
from petra_graph.program.weight_versions import WeightVersions


@frozen
class Message:
    """A message along an edge."""

    gradients: Streams
    """In a forward message, the streams themselves."""
    activation: Streams | None = None

    @property
    def streams(self) -> Streams:
        """All its tensors."""
        return [*self.gradients, *(self.activation or ())]


class StageMemory:
    """A stage between two drains."""

    def __init__(self, program: StageProgram, costs: CostTable, share: EncodedShare) -> None:
        self.program = program
        self.live = LiveTensors(
            parameters=sum(
                costs.nodes[name].parameter_bytes + costs.nodes[name].statistics_bytes for name in program.nodes
            )
        )
        self._nodes: Mapping[str, NodeCost] = {name: costs.nodes[name] for name in program.nodes}
        self._share = share
        self._inside = frozenset(program.nodes)
        copied = sum(
            self._nodes[name].parameter_bytes
            for segment in program.segments
            if segment.backward == "stored" and segment.kind != "head"
            for name in segment.nodes
        )
        self._versions = WeightVersions(lambda: self.live.allocate([copied], "parameter_buffer"))
        self._segments = SegmentMemory(self._nodes, self.live, self._versions, share)

    def forward(self, micro_batch: int, arrived: Mapping[Edge, Sequence[int]]) -> dict[Edge, Message]:
        """Do the forward; `arrived` has the sizes of each edge's message."""
        received = {edge: self._received(sizes, edge) for edge, sizes in arrived.items()}
        sent: dict[Edge, Message] = {}
        self._versions.begin(micro_batch)
        for segment in self.program.segments:
            inputs = [stream for entry in segment.inputs for stream in received.pop(entry.edge)]
            outputs = self._segments.forward(segment, micro_batch, inputs)
            for edge in segment.outputs:
                if edge.consumer in self._inside:
                    self.live.hold(outputs)
                    received[edge] = outputs
                else:
                    sent[edge] = Message(self._sent(outputs))
            self.live.drop(outputs)
            self.live.drop(inputs)
        return sent

    def backward(
        self, micro_batch: int, arrived: Mapping[Edge, Sequence[int]], activated: Collection[Edge]
    ) -> dict[Edge, Message]:
        """Do the backward; messages along the edges in `activated` hold the activation beside the gradient."""
        received = {
            edge: Message(self._received(sizes, edge), self._received(sizes, edge) if edge in activated else None)
            for edge, sizes in arrived.items()
        }
        sent: dict[Edge, Message] = {}
        # The executor's local variables live until the next segment's replace them.
        found: Streams = []
        given: Streams = []
        for segment in reversed(self.program.segments):
            messages = [received.pop(edge) for edge in segment.outputs]
            gradients = self._summed([message.gradients for message in messages])
            outputs = next((message.activation for message in messages if message.activation is not None), [])
            self.live.hold(outputs)
            for message in messages:
                self.live.drop(message.streams)
            self.live.drop(given)
            given = [*gradients, *outputs]
            inputs, through = self._segments.backward(segment, micro_batch, outputs, gradients)
            self.live.drop(found)
            found = [*inputs, *through]
            first = 0
            for entry in segment.inputs:
                own = slice(first, first := first + entry.streams)
                if entry.edge.producer == INPUT:
                    continue
                activation = inputs[own] if entry.returns_activation else None
                if entry.edge.producer in self._inside:
                    message = Message(through[own], activation)
                    self.live.hold(message.streams)
                    received[entry.edge] = message
                else:
                    sent[entry.edge] = Message(
                        self._sent(through[own]), None if activation is None else self._sent(activation)
                    )
        self.live.drop([*given, *found])
        self.live.drop(self._versions.end(micro_batch) or (), "parameter_buffer")
        return sent

    def update(self) -> None:
        """Do the optimizer's step."""
        self._versions.before_step()
        self.live.fixed["optimizer"] = sum(node.optimizer_bytes for node in self._nodes.values())
        self.live.update_peak(max(node.work["update"].working_bytes for node in self._nodes.values()))
        self._segments.forget_gradients()

    def _summed(self, gradients: list[Streams]) -> Streams:
        if len(gradients) < 2:  # noqa: PLR2004  one is no sum
            streams = gradients[0] if gradients else []
            self.live.hold(streams)
            return streams
        sizes = [stream.size for stream in gradients[0]]
        # A sum of three has that of two beside it.
        self.live.update_peak(sum(sizes) + (max(sizes, default=0) if len(gradients) > 2 else 0))  # noqa: PLR2004
        return self.live.allocate(sizes)

    def _received(self, sizes: Sequence[int], edge: Edge) -> Streams:
        streams = self.live.allocate(sizes)
        encoded = edge.producer != INPUT and self._share.channel != 1
        self.live.update_peak(ceil(self._share.channel * sum(sizes)) if encoded else 0)
        return streams

    def _sent(self, streams: Streams) -> Streams:
        if self._share.channel == 1:
            self.live.hold(streams, "channels")
            return streams
        encoded = self.live.allocate([ceil(self._share.channel * stream.size) for stream in streams], "channels")
        self.live.update_peak()
        return encoded

"""One stage's forward, backward and update in bytes: the operations of `executor.stage`, without tensors.

Names and order are those of the executor, so that the two can be read side by side.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from math import ceil

from attrs import frozen

from petra_graph.compiler.memory.live_tensors import LiveTensors, Streams
from petra_graph.compiler.memory.segment_memory import EncodedShare, SegmentMemory
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import Edge
from petra_graph.program.node_costs import CostTable, NodeCost, Operation, Work
from petra_graph.program.stage_program import StageProgram
from petra_graph.program.weight_versions import WeightVersions

_OF_DELAY: tuple[Operation, Operation] = ("predict", "estimate")


@frozen
class Message:
    """A message along an edge."""

    live: LiveTensors
    """Of the device on which it is."""
    gradients: Streams
    """In a forward message, the streams themselves."""
    activation: Streams | None = None

    @property
    def streams(self) -> Streams:
        return [*self.gradients, *(self.activation or ())]


class DelayedWeightsMemory:
    """The parameters that a late forward or backward has in place of a stage's own: `executor.delayed_weights`, without tensors."""

    def __init__(self, works: Sequence[Work], live: LiveTensors) -> None:
        """Begin without an answer.

        Args:
            works: the cost of one, of each node; none, where the optimizer is not asked.
            live: the tensors of the stage's device.
        """
        self._live = live
        self._bytes = sum(work.kept_bytes for work in works)
        self._working = max((work.working_bytes - work.kept_bytes for work in works), default=0)
        """Bytes beside an answer while it is made."""
        self._held: Streams = []
        self._delay = 0
        """Of the answer that is held, in updates; 0: none is."""

    def hold(self, delay: int) -> None:
        """Hold the answer for a delay in updates, in place of that for another one."""
        if delay != self._delay:
            self.drop()
        if delay and not self._delay and self._bytes:
            self._held, self._delay = self._live.allocate([self._bytes], "parameter_buffer"), delay
            self._live.update_peak(self._working)

    def drop(self) -> None:
        """Free the answer."""
        self._live.drop(self._held, "parameter_buffer")
        self._held, self._delay = [], 0


class StageMemory:
    """A stage between two drains."""

    def __init__(self, program: StageProgram, costs: CostTable, share: EncodedShare, live: LiveTensors) -> None:
        """Begin with parameters alone.

        Args:
            share: of bytes in which tensors wait and travel.
            live: the tensors of the stage's device, where other stages may have theirs.
        """
        self.program = program
        self.live = live
        self._nodes: Mapping[str, NodeCost] = {name: costs.nodes[name] for name in program.nodes}
        self._sizes = {
            edge: costs.sample_bytes if edge.producer == INPUT else costs.nodes[edge.producer].output_bytes
            for edge in (*program.receives, *program.sends)
        }
        live.add("parameters", sum(node.parameter_bytes + node.statistics_bytes for node in self._nodes.values()))
        self._optimizer = sum(node.optimizer_bytes for node in self._nodes.values())
        """Bytes of the optimizer's state, until there is one."""
        self._first_step_working = max(
            node.work["first_update"].working_bytes - node.optimizer_bytes for node in self._nodes.values()
        )
        self._step_working = max(node.work["update"].working_bytes for node in self._nodes.values())
        self._share = share
        self._inside = frozenset(program.nodes)
        copied = sum(
            self._nodes[name].parameter_bytes
            for segment in program.segments
            if segment.backward == "stored" and segment.kind != "head"
            for name in segment.nodes
        )
        self._versions = WeightVersions(lambda: self.live.allocate([copied], "parameter_buffer"))
        corrects = () if copied else self._nodes.values()
        self._predicted, self._earlier = (
            DelayedWeightsMemory([node.work[name] for node in corrects if name in node.work], live)
            for name in _OF_DELAY
        )
        self._facts = program.facts(stages=program.index, replicas=1, micro_batches=sys.maxsize)
        self._segments = SegmentMemory(self._nodes, self.live, self._versions, share)

    def forward(self, micro_batch: int, arrived: Mapping[Edge, Message]) -> dict[Edge, Message]:
        """Do the forward; `arrived` has the message of each edge from another stage."""
        received = {
            edge: self._received(arrived[edge].gradients, edge, arrived[edge].live)
            if edge in arrived
            else self._samples(edge)
            for edge in self.program.receives
        }
        sent: dict[Edge, Message] = {}
        self._hold(self._predicted, micro_batch)
        self._versions.begin(micro_batch)
        for segment in self.program.segments:
            inputs = [stream for entry in segment.inputs for stream in received.pop(entry.edge)]
            outputs = self._segments.forward(segment, micro_batch, inputs)
            for edge in segment.outputs:
                if edge.consumer in self._inside:
                    self.live.hold(outputs)
                    received[edge] = outputs
                else:
                    sent[edge] = Message(self.live, self._sent(outputs))
            self.live.drop(outputs)
            self.live.drop(inputs)
        return sent

    def backward(self, micro_batch: int, arrived: Mapping[Edge, Message]) -> dict[Edge, Message]:
        """Do the backward; `arrived` has the message of each edge to another stage."""
        received = {
            edge: Message(
                self.live,
                self._received(message.gradients, edge, message.live),
                None if message.activation is None else self._received(message.activation, edge, message.live),
            )
            for edge, message in arrived.items()
        }
        sent: dict[Edge, Message] = {}
        self._hold(self._earlier, micro_batch)
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
                    message = Message(self.live, through[own], activation)
                    self.live.hold(message.streams)
                    received[entry.edge] = message
                else:
                    sent[entry.edge] = Message(
                        self.live, self._sent(through[own]), None if activation is None else self._sent(activation)
                    )
        self.live.drop([*given, *found])
        self.live.drop(self._versions.end(micro_batch) or (), "parameter_buffer")
        return sent

    def update(self) -> None:
        self._versions.before_step()
        self.drop_delayed_weights()
        self.live.add("optimizer", self._optimizer)
        self.live.update_peak(self._first_step_working if self._optimizer else self._step_working)
        self._optimizer = 0
        self._segments.forget_gradients()

    def drop_delayed_weights(self) -> None:
        """Free the parameters for a delay, before an update."""
        self._predicted.drop()
        self._earlier.drop()

    def _hold(self, weights: DelayedWeightsMemory, micro_batch: int) -> None:
        """Hold what the optimizer gives for a pass of a micro-batch, once it has taken a step."""
        if not self._optimizer:
            weights.hold(self._facts.staleness(micro_batch))

    def _summed(self, gradients: list[Streams]) -> Streams:
        if len(gradients) < 2:  # noqa: PLR2004  one needs no addition
            streams = gradients[0] if gradients else []
            self.live.hold(streams)
            return streams
        sizes = [stream.size for stream in gradients[0]]
        # A sum of three needs the sum of two at the same time.
        self.live.update_peak(sum(sizes) + (max(sizes, default=0) if len(gradients) > 2 else 0))  # noqa: PLR2004
        return self.live.allocate(sizes)

    def _samples(self, edge: Edge) -> Streams:
        streams = self.live.allocate(self._sizes[edge])
        self.live.update_peak()
        return streams

    def _received(self, waiting: Streams, edge: Edge, live: LiveTensors) -> Streams:
        """Return a message's streams, held once; from a stage on the same device they are the same tensors."""
        sizes, encoded = self._sizes[edge], self._share.channel != 1
        if live is self.live:
            if encoded:
                streams = self.live.allocate(sizes)
                self.live.update_peak()
            else:
                streams = waiting
                self.live.hold(streams)
        else:
            streams = self.live.allocate(sizes)
            self.live.update_peak(ceil(self._share.channel * sum(sizes)) if encoded else 0)
        live.drop(waiting, "channels")
        return streams

    def _sent(self, streams: Streams) -> Streams:
        if self._share.channel == 1:
            self.live.hold(streams, "channels")
            return streams
        encoded = self.live.allocate([ceil(self._share.channel * stream.size) for stream in streams], "channels")
        self.live.update_peak()
        return encoded

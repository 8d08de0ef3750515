"""One stage's operations with tensors that are only sizes, as `executor.stage` and `executor.runners` do them.

The functions of `StageMemory` are to be read beside those: where the executor drops a reference to a tensor, so does it. What an
operation needs beside its arguments and results comes from running the executor's own segments once (`measure`).
"""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Literal

from attrs import evolve, frozen

from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import ChannelKey, Direction, Edge
from petra_graph.program.device_types import CUBLAS_BYTES
from petra_graph.program.message_layout import ITEM_BYTES, encoded_dtype
from petra_graph.program.node_costs import CostTable, Operation
from petra_graph.program.stage_program import Segment, StageProgram
from petra_graph.program.weight_versions import WeightVersions
from petra_graph.spec.model import PrecisionSpec


@frozen(kw_only=True)
class EncodedShare:
    """The share of a tensor's bytes that remains where it waits or travels in a smaller type or on another device."""

    buffer: float = 1.0
    """Of an input that waits for its backward; samples wait as they are."""
    channel: float = 1.0
    """Of messages between stages."""
    targets: float = 1.0
    """Of targets that wait for the head on the device that reads the samples; 0: they wait elsewhere."""
    libraries: int = 0
    """Bytes that a device's libraries keep from their first operation on."""


def transport_of(precision: PrecisionSpec, kind: str) -> EncodedShare:
    """Return the shares of a precision on devices of a kind, "cpu" or "cuda"."""
    own = "float64" if precision.compute == "float64" else "float32"
    buffer, channel = (
        ITEM_BYTES[encoded_dtype(stored, own)] / ITEM_BYTES[own]
        for stored in (precision.buffer_dtype, precision.channel_dtype)
    )
    share = EncodedShare(buffer=buffer, channel=channel)
    return evolve(share, targets=0.0, libraries=CUBLAS_BYTES) if kind == "cuda" else share


class Device:
    """The bytes alive on one device, and the most at any moment."""

    def __init__(self, libraries: int = 0, known_peak: int | None = None) -> None:
        self.live = libraries
        self.peak = 0
        self.known_peak = known_peak
        """The most, from an execution before: it is looked at when it comes."""
        self.parts: dict[str, int] = {}
        """What its bytes are for, those of the running operation under "working"."""
        self.stages: list[StageMemory] = []

    def moment(self, working: int = 0) -> None:
        """Look at a moment at which the running operation holds `working` bytes of its own."""
        alive = self.live + working
        self.peak = max(self.peak, alive)
        if alive == self.known_peak and not self.parts:
            counted, held = set[int](), [stage.held() for stage in self.stages]
            for part in held[0]:
                tensors = (one for own in held for one in own[part] if one.device is self)
                new = {id(one): one.size for one in tensors if id(one) not in counted}
                counted.update(new)
                self.parts[part] = sum(new.values())
            self.parts["working"] = alive - sum(self.parts.values())


class Tensor:
    """A tensor that is only a size; it is alive as long as Python holds it."""

    __slots__ = ("device", "size")

    def __init__(self, size: int, device: Device) -> None:
        self.size = size
        self.device = device
        device.live += size

    def __del__(self) -> None:
        self.device.live -= self.size


Tensors = list[Tensor]
Message = list[Tensors]
"""Of a forward the streams; of a backward the gradients, and the activation for a producer that reconstructs."""
_Graph = list[tuple[str, Tensors, Tensors, Tensor]]
"""A kept graph: for each node its name, its inputs, its outputs, and what is saved between them."""
Queues = Mapping[ChannelKey, deque[Message]]
_DIFFERENTIATE = frozenset[Operation]({"reverse", "recompute", "replay", "forward_backward"})


class StageMemory:
    """A stage between two drains."""

    def __init__(
        self, program: StageProgram, costs: CostTable, share: EncodedShare, device: Device, queues: Queues
    ) -> None:
        """Begin with parameters alone."""
        self.program, self.device = program, device
        device.stages.append(self)
        self._nodes = {name: costs.nodes[name] for name in program.nodes}
        self._sizes = {
            edge: costs.sample_bytes if edge.producer == INPUT else costs.nodes[edge.producer].output_bytes
            for edge in (*program.receives, *program.sends)
        }
        self._share, self._queues = share, queues
        nodes = self._nodes.values()
        self._parameters = self._new(sum(node.parameter_bytes + node.statistics_bytes for node in nodes))
        self._gradients: dict[str, Tensor] = {}
        """By node."""
        self._state_bytes = sum(node.optimizer_bytes for node in nodes)
        self._state = None if self._state_bytes else self._new(0)
        """The optimizer's, from its first step on; without any, each step is like the first."""
        self._first_step = max(node.work["first_update"].working_bytes - node.optimizer_bytes for node in nodes)
        self._step = max(node.work["update"].working_bytes for node in nodes)
        self._inputs: dict[str, deque[Tensors]] = defaultdict(deque)
        """What segments keep, by their first node."""
        self._graphs: dict[str, deque[_Graph]] = defaultdict(deque)
        self._of_head: deque[tuple[Tensors, Tensors]] = deque()
        copied = sum(
            self._nodes[name].parameter_bytes
            for segment in program.segments
            if segment.backward == "stored" and segment.kind != "head"
            for name in segment.nodes
        )
        self._versions = WeightVersions(lambda: self._new(copied))
        self._facts = program.facts(stages=program.index, replicas=1, micro_batches=sys.maxsize)
        self._delayed: dict[Literal["predict", "estimate"], tuple[int, Tensor]] = {}
        """The parameters that a late forward or backward has in place of the stage's own, and for which delay in updates."""
        self._corrects = () if copied else tuple(nodes)
        """The nodes whose optimizer may give such parameters."""

    def held(self) -> dict[str, Iterable[Tensor]]:
        """Return the tensors that are held between operations, by what they are for; a tensor counts for the first of them."""
        graphs = (node for waiting in self._graphs.values() for graph in waiting for node in graph)
        return {
            "parameters": [self._parameters],
            "gradients": self._gradients.values(),
            "optimizer": [] if self._state is None else [self._state],
            "parameter_buffer": [*self._versions.copies.values(), *(tensor for _, tensor in self._delayed.values())],
            "input_buffer": (tensor for waiting in self._inputs.values() for kept in waiting for tensor in kept),
            "graphs": (tensor for _, inputs, outputs, between in graphs for tensor in (*inputs, *outputs, between)),
            "channels": (
                one for queue in self._queues.values() for message in queue for sent in message for one in sent
            ),
        }

    # Operations.

    def forward(self, micro_batch: int) -> None:
        received: dict[Edge, Tensors] = {}
        for edge in self.program.receives:
            if edge.producer == INPUT:
                received[edge] = self._sized(self._sizes[edge])
                self.device.moment()
            else:
                (received[edge],) = self._received(edge, "forward")
        self.hold_for_delay("predict", micro_batch)
        self._versions.begin(micro_batch)
        for segment in self.program.segments:
            inputs = [tensor for entry in segment.inputs for tensor in received.pop(entry.edge)]
            outputs = self._segment_forward(segment, micro_batch, inputs)
            for edge in segment.outputs:
                if edge.consumer in self._nodes:
                    received[edge] = outputs
                else:
                    self._send(edge, "forward", outputs)
            del inputs, outputs

    def backward(self, micro_batch: int) -> None:
        # An entry of `received` has the gradients, and the activation where the producer reconstructs.
        received = {edge: self._received(edge, "backward") for edge in self.program.sends}
        self.hold_for_delay("estimate", micro_batch)
        for segment in reversed(self.program.segments):
            # The variables of the segment before live until these replace them, as in the executor.
            gradients, outputs = self._joined([received.pop(edge) for edge in segment.outputs])
            inputs, through = self._segment_backward(segment, micro_batch, outputs, gradients)
            first = 0
            for entry in segment.inputs:
                own = slice(first, first := first + entry.streams)
                message = [through[own], inputs[own]] if entry.returns_activation else [through[own]]
                if entry.edge.producer in self._nodes:
                    received[entry.edge] = message
                elif entry.edge.producer != INPUT:
                    self._send(entry.edge, "backward", *message)
        self._versions.end(micro_batch)

    def update(self) -> None:
        self._versions.before_step()
        self._delayed.clear()
        first = self._state is None
        if first:
            self._state = self._new(self._state_bytes)
        self.device.moment(self._first_step if first else self._step)
        self._gradients.clear()

    # Messages.

    def _send(self, edge: Edge, direction: Direction, *message: Tensors) -> None:
        queued: Message = []
        self._queues[ChannelKey(edge, direction)].append(queued)
        for tensors in message:
            if self._share.channel == 1:
                queued.append(tensors)
            else:
                queued.append(self._sized(ceil(self._share.channel * tensor.size) for tensor in tensors))
                self.device.moment()

    def _received(self, edge: Edge, direction: Direction) -> Message:
        """Take a message; it stays in its queue until it has been copied."""
        queue, sizes, encoded = self._queues[ChannelKey(edge, direction)], self._sizes[edge], self._share.channel != 1
        found: Message = []
        while waiting := queue[0]:
            here = waiting[0][0].device is self.device
            if here and not encoded:
                found.append(waiting[0])
            else:
                found.append(self._sized(sizes))
                self.device.moment(ceil(self._share.channel * sum(sizes)) if encoded and not here else 0)
            del waiting[0]
        queue.popleft()
        return found

    def _joined(self, messages: list[Message]) -> tuple[Tensors, Tensors]:
        """Return the sum of the gradients of some consumers, and the activation that one of them returns."""
        outputs = next((message[1] for message in messages if len(message) > 1), [])
        if len(messages) < 2:  # noqa: PLR2004  one needs no addition
            return (messages[0][0] if messages else []), outputs
        sizes = [tensor.size for tensor in messages[0][0]]
        # A sum of three needs the sum of two at the same time.
        self.device.moment(sum(sizes) + (max(sizes, default=0) if len(messages) > 2 else 0))  # noqa: PLR2004
        return self._sized(sizes), outputs

    # Segments.

    def _segment_forward(self, segment: Segment, micro_batch: int, inputs: Tensors) -> Tensors:
        name = segment.nodes[0]
        if segment.kind == "head":
            self._of_head.append((inputs, self._do(name, "forward_backward", inputs)))
            return []
        if segment.keeps == "graph":
            if segment.backward == "stored":
                self._versions.copy_for(micro_batch)
            return self._record(segment.nodes, inputs)
        if segment.keeps == "input":
            share = self._buffer_share(segment)
            self._inputs[name].append(
                inputs if share == 1 else self._sized(ceil(share * tensor.size) for tensor in inputs)
            )
        streams = inputs
        for name in segment.nodes:
            streams = self._do(name, "forward", streams)
        return streams

    def _segment_backward(
        self, segment: Segment, micro_batch: int, outputs: Tensors, gradients: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Return the input of a segment and its gradient."""
        name = segment.nodes[0]
        if segment.kind == "head":
            return self._of_head.popleft()
        stored = segment.backward == "stored" and self._versions.older(micro_batch) is not None
        match segment.keeps:
            case "graph":
                inputs = self._graphs[name][0][0][1]
                return inputs, self._replay(name, gradients)
            case "input":
                waiting = self._inputs[name]
                if self._buffer_share(segment) == 1:
                    inputs = waiting[0]  # It counts as waiting until it has been used.
                    through = self._rerun(segment.nodes, inputs, gradients)
                    waiting.popleft()
                    return inputs, through
                inputs = self._sized(self._nodes[name].input_bytes)
                self.device.moment()
                waiting.popleft()
                return inputs, self._rerun(segment.nodes, inputs, gradients)
            case "nothing" if stored:
                inputs = self._do(name, "invert", outputs)
                return inputs, self._rerun(segment.nodes, inputs, gradients)
            case "nothing":
                both = self._do(name, "reverse", [*outputs, *gradients])
                return both[: len(both) // 2], both[len(both) // 2 :]

    def _buffer_share(self, segment: Segment) -> float:
        samples = any(entry.edge.producer == INPUT for entry in segment.inputs)
        return 1.0 if samples else self._share.buffer

    def _rerun(self, nodes: Sequence[str], inputs: Tensors, gradients: Tensors) -> Tensors:
        name = nodes[0]
        if len(nodes) > 1:
            self._record(nodes, inputs)
            return self._replay(name, gradients)
        return self._do(name, "recompute", [*gradients, *inputs])

    def _record(self, nodes: Iterable[str], streams: Tensors) -> Tensors:
        """Evaluate nodes with a graph, and keep it."""
        graph: _Graph = []
        for name in nodes:
            inputs, streams = streams, self._do(name, "record", streams)
            graph.append((name, inputs, streams, self._new(self._nodes[name].work["record"].kept_bytes)))
            if len(graph) == 1:
                self._graphs[name].append(graph)
        return streams

    def _replay(self, first: str, through: Tensors) -> Tensors:
        """Differentiate the oldest graph that is kept, node by node."""
        graph = self._graphs[first][0]
        while graph:
            name, inputs = graph[-1][:2]
            through = self._do(name, "replay", [*through, *inputs])
            graph.pop()
        self._graphs[first].popleft()
        return through

    def _do(self, name: str, operation: Operation, arguments: Tensors) -> Tensors:
        """Return the results of an operation of a node, some of which may lie in the memory of an argument or of one another.

        The first that differentiates makes the node's gradients, and others add to them.
        """
        node = self._nodes[name]
        work, differentiates = node.work[operation], operation in _DIFFERENTIATE
        adds = differentiates and name in self._gradients
        self.device.moment(work.accumulating_bytes if adds else work.working_bytes)
        if differentiates and not adds:
            self._gradients[name] = self._new(node.gradient_bytes)
        sizes = node.output_bytes if operation in {"forward", "record"} else node.input_bytes
        known = list(arguments)
        for share, size in zip(work.shares, sizes * 2 if operation == "reverse" else sizes, strict=True):
            known.append(self._new(size) if share is None else known[share])
        return known[len(arguments) :]

    def hold_for_delay(self, operation: Literal["predict", "estimate"], micro_batch: int) -> None:
        """Hold what the optimizer gives for a pass of a micro-batch, once it has taken a step, in place of that for another delay."""
        works = [node.work[operation] for node in self._corrects if operation in node.work]
        size = sum(work.kept_bytes for work in works)
        if self._state is None or not size:
            return
        delay = self._facts.staleness(micro_batch)
        if operation in self._delayed and self._delayed[operation][0] != delay:
            del self._delayed[operation]
        if delay and operation not in self._delayed:
            self._delayed[operation] = delay, self._new(size)
            self.device.moment(max(work.working_bytes - work.kept_bytes for work in works))

    def _new(self, size: int) -> Tensor:
        return Tensor(size, self.device)

    def _sized(self, sizes: Iterable[int]) -> Tensors:
        return [Tensor(size, self.device) for size in sizes]

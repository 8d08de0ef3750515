"""What a segment keeps between its forward and its backward: one class a choice.

All but the head have the same two passes. `forward` maps input streams to output streams; `backward` takes the gradient of the
output (and the output itself, where it is to be reconstructed from) and returns the gradient of the input, with the
input itself for a producer that reconstructs. Parameter gradients are added to `grad`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TypeVar

import torch
from attrs import Factory, define, field, frozen
from torch import Tensor
from torch.func import functional_call

from petra_graph.blocks import Block, Reversed, Reversible, Streams, backpropagate, frozen_statistics, leaf
from petra_graph.executor.activation_store import ActivationStore, StashedInput, fetch, restore
from petra_graph.executor.numerics import NumericsContext
from petra_graph.executor.weight_versions import Parameters, ParameterVersions, accumulate_grad, leaves
from petra_graph.registry.contracts import Loss

T = TypeVar("T")


class InFlight(deque[tuple[int, T]]):
    """What micro-batches leave between their forward and their backward, first in, first out."""

    def put(self, micro_batch: int, left: T) -> None:
        """Keep what a forward leaves."""
        self.append((micro_batch, left))

    def take(self, micro_batch: int) -> T:
        """Give it to the backward; both passes go in micro-batch order."""
        oldest, left = self.popleft()
        assert oldest == micro_batch, (oldest, micro_batch)
        return left


@define(eq=False, slots=False)
class SegmentRunner(ABC):
    """A segment's modules between their forward and their backward."""

    modules: Mapping[str, Block]
    """By node, in order."""
    evaluation: NumericsContext
    reads_samples: bool = field(kw_only=True)
    versions: ParameterVersions | None = field(default=None, kw_only=True)
    """Given where the backward uses the forward's parameters."""

    @abstractmethod
    def backward(self, micro_batch: int, outputs: Streams | None, gradients: Streams) -> Reversed:
        """Differentiate the segment at micro-batch `micro_batch`, whose forward came first of those still open.

        Args:
            micro_batch: counted from the run's start.
            outputs: the output streams, where this cell reconstructs; else None.
            gradients: the loss's gradient with respect to each output stream.
        """

    def run(self, micro_batch: int, streams: Streams, parameters: Parameters | None = None) -> Streams:
        """Evaluate the modules in training mode, with other parameters than their own where some are given."""
        if self.reads_samples:
            streams = (self.evaluation.prepare(streams[0]),)
        for name, module in self.modules.items():
            with self.evaluation.node(name, micro_batch):
                streams = (
                    module(*streams) if parameters is None else functional_call(module, dict(parameters[name]), streams)
                )
            streams = self.evaluation.finalize(name, module, streams)
        return streams

    def evaluate(self, streams: Streams) -> Streams:
        """Evaluate the modules as they stand (in evaluation mode, as the caller set them)."""
        if self.reads_samples:
            streams = (self.evaluation.prepare(streams[0]),)
        for name, module in self.modules.items():
            with self.evaluation.arithmetic():
                streams = module(*streams)
            streams = self.evaluation.finalize(name, module, streams)
        return streams

    def run_without_graph(self, micro_batch: int, inputs: Streams) -> Streams:
        """Evaluate the modules in training mode; neither a graph nor running statistics remember it."""
        with torch.no_grad(), ExitStack() as frozen:
            for module in self.modules.values():
                frozen.enter_context(frozen_statistics(module))
            return self.run(micro_batch, inputs)


class BodyRunner(SegmentRunner):
    """A segment that is not the head."""

    def stored(self, micro_batch: int) -> Parameters | None:
        """Return the parameters that the backward must use, where they are not the modules' present ones."""
        seen = None if self.versions is None else self.versions.seen(micro_batch)
        return None if seen is None else leaves(seen, self.modules)

    @abstractmethod
    def forward(self, micro_batch: int, inputs: Streams) -> Streams:
        """Run the segment on a training micro-batch; the outputs have no graph."""


class Reconstruct(BodyRunner):
    """A reversible node that reconstructs its input from its output."""

    def forward(self, micro_batch: int, inputs: Streams) -> Streams:
        """Run without a graph."""
        return self.run_without_graph(micro_batch, inputs)

    def backward(self, micro_batch: int, outputs: Streams | None, gradients: Streams) -> Reversed:
        """Reconstruct, and differentiate there with the current parameters."""
        assert outputs is not None
        ((name, module),) = self.modules.items()
        assert isinstance(module, Reversible)
        with self.evaluation.node(name, micro_batch):
            reverse = module.reverse_vjp(outputs, gradients)
        canonicalize = self.evaluation.canonicalize
        return Reversed(canonicalize(reverse.inputs), canonicalize(reverse.gradients))


class ReconstructThenRecompute(Reconstruct):
    """A reversible node that reconstructs with the current parameters, and differentiates at the forward's."""

    def backward(self, micro_batch: int, outputs: Streams | None, gradients: Streams) -> Reversed:
        """Invert, then run again with the parameters that the forward saw: 5 units, where petra has 4."""
        parameters = self.stored(micro_batch)
        if parameters is None:
            return super().backward(micro_batch, outputs, gradients)
        assert outputs is not None
        ((name, module),) = self.modules.items()
        assert isinstance(module, Reversible)
        with torch.no_grad(), frozen_statistics(module), self.evaluation.node(name, micro_batch):
            inputs = self.evaluation.canonicalize(module.inverse(*outputs))
        at = tuple(leaf(stream) for stream in inputs)
        again = self.run(micro_batch, at, parameters)
        through = self.evaluation.canonicalize(backpropagate(again, gradients, at))
        accumulate_grad(parameters, self.modules)
        return Reversed(inputs, through)


@define(eq=False, slots=False)
class Recompute(BodyRunner):
    """Nodes whose input waits in a FIFO, and which run again in the backward (PETRA algorithm 1, lines 15 to 17)."""

    storage: ActivationStore = field(
        default=Factory(lambda cell: ActivationStore.of(cell.evaluation), takes_self=True), init=False
    )
    buffer: InFlight[StashedInput] = field(factory=InFlight, init=False)

    def forward(self, micro_batch: int, inputs: Streams) -> Streams:
        """Run without a graph; the input goes into the FIFO."""
        self.buffer.put(micro_batch, self.storage.keep(inputs))
        return self.run_without_graph(micro_batch, inputs)

    def backward(self, micro_batch: int, outputs: Streams | None, gradients: Streams) -> Reversed:
        """Run again, with the current parameters or those of the forward, and differentiate."""
        inputs = restore(self.buffer.take(micro_batch))
        parameters = self.stored(micro_batch)
        at = tuple(leaf(stream) for stream in inputs)
        again = self.run(micro_batch, at, parameters)
        through = self.evaluation.canonicalize(backpropagate(again, gradients, at))
        if parameters is not None:
            accumulate_grad(parameters, self.modules)
        return Reversed(inputs, through)

    def fetch(self) -> None:
        """Begin to bring back, from wherever it waits, what the next backward will take."""
        if self.buffer:
            fetch(self.buffer[0][1])


@define(eq=False, slots=False)
class StashGraph(BodyRunner):
    """Nodes whose forward keeps its graph, as plain backpropagation does."""

    graphs: InFlight[_Graph] = field(factory=InFlight, init=False)

    def forward(self, micro_batch: int, inputs: Streams) -> Streams:
        """Run with a graph; over a copy of the parameters, where an update may come before the backward."""
        parameters = None if self.versions is None else leaves(self.versions.kept(micro_batch), self.modules)
        at = tuple(leaf(stream) for stream in inputs)
        outputs = self.run(micro_batch, at, parameters)
        self.graphs.put(micro_batch, _Graph(at, outputs, parameters))
        return tuple(stream.detach() for stream in outputs)

    def backward(self, micro_batch: int, outputs: Streams | None, gradients: Streams) -> Reversed:
        """Differentiate the kept graph."""
        graph = self.graphs.take(micro_batch)
        through = self.evaluation.canonicalize(backpropagate(graph.outputs, gradients, graph.inputs))
        if graph.parameters is not None:
            accumulate_grad(graph.parameters, self.modules)
        return Reversed(tuple(stream.detach() for stream in graph.inputs), through)


@frozen
class _Graph:
    """A forward whose graph waits for its backward."""

    inputs: Streams
    outputs: Streams
    parameters: Parameters | None
    """The leaves that the graph ends in; None: the modules' own parameters."""


@frozen(kw_only=True)
class HeadResult:
    """What the head says of one micro-batch or evaluation batch."""

    micro_batch: int
    samples: int
    loss: Tensor
    """Mean over the samples, a scalar without a graph."""
    metrics: Mapping[str, Tensor]
    """Sums over the samples, scalars."""


@define(eq=False, slots=False)
class HeadRunner(SegmentRunner):
    """The head: forward and loss with a graph, differentiated at once; the input's gradient waits for the backward."""

    loss: Loss = field(kw_only=True)
    pending: InFlight[Reversed] = field(factory=InFlight, init=False)

    def forward_backward(self, micro_batch: int, inputs: Streams, target: Tensor) -> HeadResult:
        """Run forward and loss, and differentiate both."""
        leaves = tuple(leaf(stream) for stream in inputs)
        (output,) = self.run(micro_batch, leaves)
        loss = self.loss(output, target)
        gradients = self.evaluation.canonicalize(backpropagate([loss], [torch.ones_like(loss)], leaves))
        self.pending.put(micro_batch, Reversed(inputs, gradients))
        return self._result(micro_batch, output.detach(), loss.detach(), target)

    def backward(self, micro_batch: int, outputs: Streams | None, gradients: Streams) -> Reversed:
        """Hand over what `forward_backward` found."""
        return self.pending.take(micro_batch)

    def eval_step(self, inputs: Streams, target: Tensor) -> HeadResult:
        """Evaluate the head and the loss, without a graph."""
        (output,) = self.evaluate(inputs)
        return self._result(-1, output, self.loss(output, target), target)

    def _result(self, micro_batch: int, output: Tensor, loss: Tensor, target: Tensor) -> HeadResult:
        with torch.no_grad():
            metrics = self.loss.metrics(output, target)
        return HeadResult(micro_batch=micro_batch, samples=len(target), loss=loss, metrics=metrics)

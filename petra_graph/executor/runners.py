"""Forward and backward of a segment: one class for each way to keep the forward's input (PETRA section 3.3, algorithm 1).

    class         forward of m                              backward of m
    Reconstruct   x_j = F(x_{j-1}), keeps nothing           differentiates at F^-1(x~_j)            equation (5); lines 8 and 13
    Recompute     the same; x_{j-1} goes into a FIFO        runs F again at x_{j-1} from there      lines 7 and 8, 15 and 16
    StashGraph    the same with a graph, which it keeps     differentiates that graph               equations (1) to (3)

F is the segment with its parameters, x its streams, x~ those that come back from its consumer. `backward` takes the gradient of x_j
(delta_{j+1}), and x~_j where the runner reconstructs from it; it returns the gradient of x_{j-1} (delta_j), and x_{j-1} for a producer that
reconstructs. Gradients of parameters (Delta_j) are added to `grad` (lines 17 and 18). The last segment is in `executor.head`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TypeVar, cast

import torch
from attrs import define, field
from torch import Tensor

from petra_graph.blocks import Block, Reversed, Reversible, Streams, backpropagate, frozen_statistics, leaf
from petra_graph.blocks.differentiation import without_graph
from petra_graph.executor.delayed_weights import ParameterVersions, having
from petra_graph.executor.encoded import EncodedTensors, decode, encode
from petra_graph.executor.numerics import NumericsContext
from petra_graph.executor.recorded import RecordedSegment

_NOTHING = nullcontext()
T = TypeVar("T")


class InFlight(deque[tuple[int, T]]):
    """Values of the micro-batches between their forward and their backward, first in, first out."""

    def take(self, micro_batch: int) -> T:
        """Remove the value for the backward; both passes go in micro-batch order."""
        oldest, value = self.popleft()
        assert oldest == micro_batch, (oldest, micro_batch)
        return value


@define(eq=False, slots=False)
class SegmentRunner:
    """A segment's modules between their forward and their backward."""

    modules: Mapping[str, Block]
    """By node, in order."""
    numerics: NumericsContext
    reads_samples: bool = field(kw_only=True)
    versions: ParameterVersions | None = field(default=None, kw_only=True)
    """Set where the backward uses the forward's parameters."""
    recorded: RecordedSegment | None = field(default=None, init=False)
    """Set where operations are recorded."""

    @cached_property
    def frozen(self) -> AbstractContextManager[None]:
        """A context without updates of running statistics."""
        found = frozen_statistics(*self.modules.values())
        return found if found.places else nullcontext()

    @abstractmethod
    def backward(self, micro_batch: int, outputs: Streams | None, gradients: Streams) -> Reversed:
        """Differentiate the segment at the oldest micro-batch in flight; `outputs` are given where this runner reconstructs from them."""

    def kept(self) -> list[tuple[int, EncodedTensors]]:
        """Return what a checkpoint has of each micro-batch in flight: a reversible node keeps nothing, and at a cut the head has none."""
        return []

    def put_back(self, micro_batch: int, kept: EncodedTensors) -> None:
        """Put back what `kept` returned, in the order of the micro-batches."""
        raise AssertionError(f"nothing is kept of micro-batch {micro_batch}")

    def run(self, micro_batch: int | None, streams: Streams) -> Streams:
        """Evaluate the modules in the mode that they are in, with the random numbers of a training micro-batch, or None: of evaluations."""
        numerics = self.numerics
        if self.reads_samples:
            streams = tuple(map(numerics.prepare, streams))
        for name, module in self.modules.items():
            with numerics.node(name, micro_batch, module):
                streams = module(*streams)
            streams = numerics.canonicalize(streams)
        return streams

    def leaves(self, inputs: Streams) -> Streams:
        """Cut inputs from their graphs; those from other nodes get a gradient, and samples of the data set none."""
        return tuple(map(Tensor.detach if self.reads_samples else leaf, inputs))

    def differentiate(self, outputs: Streams, gradients: Streams, leaves: Streams) -> Streams:
        """Return the gradient of each leaf; those of parameters are added to their `grad`."""
        return self.numerics.canonicalize(backpropagate(outputs, gradients, leaves))


class BodyRunner(SegmentRunner):
    """A segment that is not the head."""

    @abstractmethod
    def forward(self, micro_batch: int, inputs: Streams) -> Streams:
        """Run the segment on a training micro-batch; the outputs have no graph."""

    def run_without_graph(self, micro_batch: int, inputs: Streams) -> Streams:
        """Evaluate the modules in training mode, without a graph or a change of running statistics."""

        def evaluated(*inputs: Tensor) -> Streams:
            with without_graph(), self.frozen:
                return self.run(micro_batch, inputs)

        return evaluated(*inputs) if self.recorded is None else self.recorded.forward(evaluated, inputs)

    def recompute(self, micro_batch: int, inputs: Streams, gradients: Streams) -> Reversed:
        """Run the modules again from their inputs, and differentiate."""
        count = len(inputs)

        def differentiated(*tensors: Tensor) -> Streams:
            leaves = self.leaves(tensors[:count])
            return self.differentiate(self.run(micro_batch, leaves), tensors[count:], leaves)

        return Reversed(inputs, self._backward(differentiated, (*inputs, *gradients)))

    def _backward(self, function: Callable[..., Streams], tensors: Streams) -> Streams:
        return function(*tensors) if self.recorded is None else self.recorded.backward(function, tensors)

    def older_weights(self, micro_batch: int) -> AbstractContextManager[None] | None:
        """Return a context with the parameters of the forward, where they are stored and others than now; else None."""
        older = None if self.versions is None else self.versions.older(micro_batch)
        return None if older is None else having(self.modules, older)


class Reconstruct(BodyRunner):
    """A reversible node that reconstructs its input from its output, with the current parameters."""

    forward = BodyRunner.run_without_graph

    def backward(self, micro_batch: int, outputs: Streams | None, gradients: Streams) -> Reversed:
        """Reconstruct, and differentiate there: equation (5), its second to fourth lines.

        Where the forward's parameters are older ones, invert, then recompute with those: 5 units, where petra has 4.
        """
        assert outputs is not None
        if (older := self.older_weights(micro_batch)) is not None:
            inputs = self.invert(micro_batch, outputs)
            with older:
                return self.recompute(micro_batch, inputs, gradients)
        count, (name, module) = len(outputs), self.reversible

        def reconstructed(*tensors: Tensor) -> Streams:
            with self.numerics.node(name, micro_batch, module):
                found = module.reverse_vjp(tensors[:count], tensors[count:])
            return self.numerics.canonicalize((*found.inputs, *found.gradients))

        found = self._backward(reconstructed, (*outputs, *gradients))
        return Reversed(found[: len(found) // 2], found[len(found) // 2 :])

    def invert(self, micro_batch: int, outputs: Streams) -> Streams:
        """Reconstruct the input alone, without a graph."""
        name, module = self.reversible
        with torch.no_grad(), self.frozen, self.numerics.node(name, micro_batch, module):
            return self.numerics.canonicalize(module.invert(*outputs))

    @cached_property
    def reversible(self) -> tuple[str, Reversible]:
        """The node and its name."""
        ((name, module),) = self.modules.items()
        assert isinstance(module, Reversible)
        return name, module


@define(eq=False, slots=False)
class Recompute(BodyRunner):
    """Nodes whose input waits in a FIFO, and which run again in the backward."""

    buffer: InFlight[EncodedTensors] = field(factory=InFlight, init=False)
    """As `precision.buffer_dtype` encodes them: the forward runs on the input itself, the backward on the decoded one."""

    def forward(self, micro_batch: int, inputs: Streams) -> Streams:
        """Run without a graph; the input goes into the FIFO."""
        self.buffer.append((micro_batch, encode(inputs, self.numerics.precision.buffer_dtype)))
        return self.run_without_graph(micro_batch, inputs)

    def backward(self, micro_batch: int, outputs: Streams | None, gradients: Streams) -> Reversed:
        """Run again, with the current parameters or those of the forward, and differentiate."""
        inputs = decode(self.buffer.take(micro_batch))
        with self.older_weights(micro_batch) or _NOTHING:
            return self.recompute(micro_batch, inputs, gradients)

    def kept(self) -> list[tuple[int, EncodedTensors]]:
        """Return the inputs as they wait."""
        return list(self.buffer)

    def put_back(self, micro_batch: int, kept: EncodedTensors) -> None:
        """Let an input wait again."""
        self.buffer.append((micro_batch, kept))


@define(eq=False, slots=False)
class StashGraph(BodyRunner):
    """Nodes whose forward keeps its graph, as plain backpropagation does."""

    graphs: InFlight[tuple[Streams, Streams, Streams]] = field(factory=InFlight, init=False)
    """The inputs of forwards whose graphs wait, the leaves over their memory, and the outputs."""

    def copied_weights(self, micro_batch: int) -> AbstractContextManager[object]:
        """Return a context with a copy of the forward's parameters, where the backward is to have those.

        Both passes have it: a graph saves some parameters as they are found in the backward, and others, as views, in the forward's memory.
        """
        return _NOTHING if self.versions is None else having(self.modules, self.versions.copy_for(micro_batch))

    def forward(self, micro_batch: int, inputs: Streams) -> Streams:
        """Run with a graph, which waits."""
        leaves = self.leaves(inputs)
        with self.copied_weights(micro_batch):
            outputs = self.run(micro_batch, leaves)
        self.graphs.append((micro_batch, (inputs, leaves, outputs)))
        return tuple(map(Tensor.detach, outputs))

    def backward(self, micro_batch: int, outputs: Streams | None, gradients: Streams) -> Reversed:
        """Differentiate the stashed graph."""
        inputs, leaves, ends = self.graphs.take(micro_batch)
        with self.copied_weights(micro_batch):
            return Reversed(inputs, self.differentiate(ends, gradients, leaves))

    def kept(self) -> list[tuple[int, EncodedTensors]]:
        """Return the inputs of the graphs."""
        return [(micro_batch, inputs) for micro_batch, (inputs, _, _) in self.graphs]

    def put_back(self, micro_batch: int, kept: EncodedTensors) -> None:
        """Put the graph of a forward that another process has done, from its inputs and the parameters that it used."""
        with self.frozen:
            self.forward(micro_batch, cast(Streams, kept))

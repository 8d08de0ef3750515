"""The runner of a segment between its forward and its backward: one class for each way to keep the forward's input.

All but the head have the same two passes. `forward` maps input streams to output streams; `backward` takes the gradient of
the output (and the output itself, where the runner reconstructs from it) and returns the gradient of the input, with the
input itself for a producer that reconstructs. Parameter gradients are added to `grad`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import TypeVar, cast

import torch
from attrs import Factory, define, evolve, field, frozen
from torch import Tensor
from torch.func import functional_call

from petra_graph.blocks import (
    Block,
    Head,
    Reversed,
    Reversible,
    Streams,
    backpropagate,
    frozen_statistics,
    leaf,
)
from petra_graph.errors import placed
from petra_graph.executor.encoded_tensors import total
from petra_graph.executor.numerics import NumericsContext
from petra_graph.executor.recorded_operations import RecordedSegment
from petra_graph.executor.stage_parameters import Parameters, ParameterVersions, accumulate_grad, parameter_leaves
from petra_graph.executor.stashed_inputs import ActivationStore, StashedInput, fetch, restore
from petra_graph.graph.node_graph import INPUT
from petra_graph.kinds.loss import Loss, mean_loss, target_count, target_weight
from petra_graph.kinds.tensor_trees import Tree, is_several, leaves, main, mapped
from petra_graph.program.stage_program import Segment
from petra_graph.spec.model import Keeps

T = TypeVar("T")


class InFlight(deque[tuple[int, T]]):
    """Values of the micro-batches between their forward and their backward, first in, first out."""

    def take(self, micro_batch: int) -> T:
        """Remove the value for the backward; both passes go in micro-batch order."""
        oldest, value = self.popleft()
        assert oldest == micro_batch, (oldest, micro_batch)
        return value


@define(eq=False, slots=False)
class SegmentRunner(ABC):
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
        """A context without updates of running statistics; asked for at work, when synchronised normalisations are in place."""
        return frozen_statistics(*self.modules.values())

    @abstractmethod
    def backward(self, micro_batch: int, outputs: Streams | None, gradients: Streams) -> Reversed:
        """Differentiate the segment at micro-batch `micro_batch`, the oldest one in flight.

        Args:
            micro_batch: counted from the run's start.
            outputs: the output streams, where this runner reconstructs; else None.
            gradients: the loss's gradient with respect to each output stream.
        """

    def run(self, micro_batch: int | None, streams: Streams, parameters: Parameters | None = None) -> Streams:
        """Evaluate the modules in the mode that they are in.

        Args:
            micro_batch: whose random numbers are drawn; None in an evaluation.
            streams: the inputs.
            parameters: to use in place of the modules' own.
        """
        numerics = self.numerics
        if self.reads_samples:
            streams = (numerics.prepare(streams[0]),)
        for name, module in self.modules.items():
            with numerics.node(name, micro_batch):
                streams = (
                    module(*streams) if parameters is None else functional_call(module, dict(parameters[name]), streams)
                )
            streams = numerics.canonicalize(streams)
            if numerics.grid_bits is not None:
                streams = numerics.on_grid(name, module, streams)
        return streams

    def leaves(self, inputs: Streams) -> Streams:
        """Cut inputs from their graphs; those from other nodes get a gradient, and samples of the data set none."""
        return tuple(map(Tensor.detach if self.reads_samples else leaf, inputs))

    def run_without_graph(self, micro_batch: int, inputs: Streams) -> Streams:
        """Evaluate the modules in training mode, without a graph or a change of running statistics."""
        if self.recorded is not None:
            return self.recorded.forward(partial(self._without_graph, micro_batch), inputs)
        with torch.no_grad(), self.frozen:
            return self.run(micro_batch, inputs)

    def _without_graph(self, micro_batch: int, *inputs: Tensor) -> Streams:
        with torch.no_grad(), self.frozen:
            return self.run(micro_batch, inputs)

    def differentiate(
        self, outputs: Sequence[Tensor], gradients: Streams, leaves: Streams, parameters: Parameters | None = None
    ) -> Streams:
        """Return the gradient of each leaf; those of `parameters`, where given, go to the modules' own."""
        found = self.numerics.canonicalize(backpropagate(outputs, gradients, leaves))
        if parameters is not None:
            accumulate_grad(parameters, self.modules)
        return found


class BodyRunner(SegmentRunner):
    """A segment that is not the head."""

    @abstractmethod
    def forward(self, micro_batch: int, inputs: Streams) -> Streams:
        """Run the segment on a training micro-batch; the outputs have no graph."""

    def older_parameters(self, micro_batch: int) -> Parameters | None:
        """Return the parameters that the backward must use, None where they are the modules' current ones."""
        older = None if self.versions is None else self.versions.older(micro_batch)
        return None if older is None else parameter_leaves(older, self.modules)

    def recompute(
        self, micro_batch: int, inputs: Streams, gradients: Streams, parameters: Parameters | None
    ) -> Reversed:
        """Run the modules again from their inputs, and differentiate."""
        if self.recorded is not None and parameters is None:
            operation = partial(self._recomputed, micro_batch, len(inputs))
            return Reversed(inputs, self.recorded.backward(operation, (*inputs, *gradients)))
        leaves = self.leaves(inputs)
        outputs = self.run(micro_batch, leaves, parameters)
        return Reversed(inputs, self.differentiate(outputs, gradients, leaves, parameters))

    def _recomputed(self, micro_batch: int, streams: int, *tensors: Tensor) -> Streams:
        """Return the gradients of inputs, the first of these tensors, for the gradients of the outputs, which are the others."""
        leaves = self.leaves(tensors[:streams])
        return self.differentiate(self.run(micro_batch, leaves), tensors[streams:], leaves)


class Reconstruct(BodyRunner):
    """A reversible node that reconstructs its input from its output, with the current parameters."""

    forward = SegmentRunner.run_without_graph

    def backward(self, micro_batch: int, outputs: Streams | None, gradients: Streams) -> Reversed:
        """Reconstruct, and differentiate there.

        Where the forward's parameters are older ones, invert, then recompute with those: 5 units, where petra has 4.
        """
        assert outputs is not None
        parameters = None if self.versions is None else self.older_parameters(micro_batch)
        if parameters is not None:
            return self.recompute(micro_batch, self.invert(micro_batch, outputs), gradients, parameters)
        if self.recorded is not None:
            found = self.recorded.backward(partial(self._reversed, micro_batch, len(outputs)), (*outputs, *gradients))
            return Reversed(found[: len(found) // 2], found[len(found) // 2 :])
        name, module = self.reversible
        with self.numerics.node(name, micro_batch):
            reverse = module.reverse_vjp(outputs, gradients)
        canonicalize = self.numerics.canonicalize
        return Reversed(canonicalize(reverse.inputs), canonicalize(reverse.gradients))

    def _reversed(self, micro_batch: int, streams: int, *tensors: Tensor) -> Streams:
        """Return inputs with their gradients, for outputs with theirs."""
        name, module = self.reversible
        with self.numerics.node(name, micro_batch):
            reverse = module.reverse_vjp(tensors[:streams], tensors[streams:])
        return self.numerics.canonicalize((*reverse.inputs, *reverse.gradients))

    def invert(self, micro_batch: int, outputs: Streams) -> Streams:
        """Reconstruct the input alone, without a graph."""
        name, module = self.reversible
        with torch.no_grad(), self.frozen, self.numerics.node(name, micro_batch):
            return self.numerics.canonicalize(module.invert(*outputs))

    @cached_property
    def reversible(self) -> tuple[str, Reversible]:
        """The node and its name."""
        ((name, module),) = self.modules.items()
        assert isinstance(module, Reversible)
        return name, module


@define(eq=False, slots=False)
class Recompute(BodyRunner):
    """Nodes whose input waits in a FIFO, and which run again in the backward (PETRA algorithm 1, lines 15 to 17)."""

    store: ActivationStore = field(
        default=Factory(lambda runner: ActivationStore.of(runner.numerics), takes_self=True), init=False
    )
    buffer: InFlight[StashedInput] = field(factory=InFlight, init=False)

    def forward(self, micro_batch: int, inputs: Streams) -> Streams:
        """Run without a graph; the input goes into the FIFO."""
        self.buffer.append((micro_batch, self.store.keep(inputs) if self.store.changes else inputs))
        return self.run_without_graph(micro_batch, inputs)

    def backward(self, micro_batch: int, outputs: Streams | None, gradients: Streams) -> Reversed:
        """Run again, with the current parameters or those of the forward, and differentiate."""
        kept = self.buffer.take(micro_batch)
        inputs = restore(kept) if self.store.changes else cast(Streams, kept)
        parameters = None if self.versions is None else self.older_parameters(micro_batch)
        return self.recompute(micro_batch, inputs, gradients, parameters)

    def fetch(self) -> None:
        """Begin to bring back the input of the next backward."""
        if self.buffer:
            fetch(self.buffer[0][1])


@define(eq=False, slots=False)
class StashGraph(BodyRunner):
    """Nodes whose forward keeps its graph, as plain backpropagation does."""

    graphs: InFlight[_Graph] = field(factory=InFlight, init=False)

    def forward(self, micro_batch: int, inputs: Streams) -> Streams:
        """Run with a graph; over a copy of the parameters, where an update may come before the backward."""
        graph = self._graph(micro_batch, inputs)
        self.graphs.append((micro_batch, graph))
        return tuple(map(Tensor.detach, graph.outputs))

    def rebuild(self, micro_batch: int, inputs: Streams) -> None:
        """Put the graph of a forward that another process has done, from its inputs and the parameters that it used."""
        with self.frozen:
            self.graphs.append((micro_batch, self._graph(micro_batch, inputs)))

    def _graph(self, micro_batch: int, inputs: Streams) -> _Graph:
        versions = self.versions
        parameters = None if versions is None else parameter_leaves(versions.copy_for(micro_batch), self.modules)
        leaves = self.leaves(inputs)
        return _Graph(leaves, self.run(micro_batch, leaves, parameters), parameters)

    def backward(self, micro_batch: int, outputs: Streams | None, gradients: Streams) -> Reversed:
        """Differentiate the stashed graph."""
        graph = self.graphs.take(micro_batch)
        found = self.differentiate(graph.outputs, gradients, graph.inputs, graph.parameters)
        return Reversed(tuple(map(Tensor.detach, graph.inputs)), found)


@frozen
class _Graph:
    """A forward whose graph waits for its backward."""

    inputs: Streams
    outputs: Streams
    parameters: Parameters | None
    """The leaves that the graph ends in; None: the modules' own parameters."""


@frozen(kw_only=True)
class Evaluated:
    """What the loss of an evaluation batch compares."""

    outputs: Tensor
    """The first, where the network returns several."""
    targets: Tree


@frozen(kw_only=True)
class HeadResult:
    """Loss and metrics of one micro-batch or evaluation batch."""

    micro_batch: int
    samples: int
    weight: float
    """Of the targets, by which losses are weighted: the number of samples, where the loss gives none."""
    counted: float
    """Targets that the metrics count: the number of samples, where the loss does not say."""
    loss: Tensor
    """Mean over the targets, a scalar without a graph."""
    metrics: Mapping[str, Tensor]
    """Sums over the samples, scalars."""
    output_sum: Tensor | None = None
    """Of a training micro-batch, for a diagnosis: not finite where the head's output is not."""
    evaluated: Evaluated | None = None
    """Of an evaluation batch."""


@frozen(kw_only=True)
class Compared:
    """An output, compared with its targets."""

    loss: Tensor
    weight: float
    counted: float
    targets: Tree
    """On the output's device."""

    @property
    def share(self) -> float:
        """The weight as a share of the samples: 1, where all targets count."""
        return self.weight / self.samples

    @property
    def samples(self) -> int:
        return len(main(self.targets))


@define(eq=False, slots=False)
class HeadRunner(SegmentRunner):
    """The head: forward and loss with a graph, differentiated at once; the input's gradient waits for the backward.

    What is differentiated is the loss times the share of the targets that count, so that windows and replicas average over
    targets, and not over micro-batches. Targets come on the CPU: their weight is known before any device has worked.
    """

    loss: Loss = field(kw_only=True)
    pending: InFlight[Reversed] = field(factory=InFlight, init=False)

    def forward_backward(self, micro_batch: int, inputs: Streams, target: Tree) -> HeadResult:
        """Run forward and loss, and differentiate both."""
        own = self.leaves(inputs)
        output = self.returned(self.run(micro_batch, own))
        compared = self.compare(micro_batch, output, target)
        weight = torch.full_like(compared.loss, compared.share)
        gradients = self.differentiate([compared.loss], (weight,), own)
        self.pending.append((micro_batch, Reversed(inputs, gradients)))
        output = mapped(Tensor.detach, output)
        sums = (
            total(output)
            if not is_several(output)
            else torch.stack([total(one).float() for one in leaves(output)]).sum()
        )
        return evolve(self._result(micro_batch, output, compared), output_sum=sums)

    def returned(self, streams: Streams) -> Tree:
        """Return what the network returned, of which these are the tensors."""
        (head,) = self.modules.values()
        return cast(Head, head).returned(streams)

    def backward(self, micro_batch: int, outputs: Streams | None, gradients: Streams) -> Reversed:
        """Return the gradients of the micro-batch's `forward_backward`."""
        return self.pending.take(micro_batch)

    def eval_step(self, inputs: Streams, target: Tree) -> HeadResult:
        """Evaluate the head and the loss, without a graph."""
        output = self.returned(self.run(None, inputs))
        compared = self.compare(None, output, target)
        evaluated = Evaluated(outputs=main(output), targets=compared.targets)
        return evolve(self._result(-1, output, compared), evaluated=evaluated)

    def compare(self, micro_batch: int | None, output: Tree, target: Tree) -> Compared:
        """Compute the loss, a scalar, with random numbers of its own; `micro_batch` as in `run`."""
        name = f"the loss behind {next(iter(self.modules))}"
        device = main(output).device
        beside = mapped(lambda one: one.to(device, non_blocking=device.type == "cuda"), target)
        with self.numerics.draws(name, micro_batch), placed(self._behind):
            weight = target_weight(self.loss, target)
            counted = target_count(self.loss, target, weight)
            loss = mean_loss(self.loss, output, beside, weight)
        return Compared(loss=loss, weight=weight, counted=counted, targets=beside)

    @property
    def _behind(self) -> str:
        return f'behind node "{next(iter(self.modules))}"'

    def _result(self, micro_batch: int, output: Tree, compared: Compared) -> HeadResult:
        with torch.no_grad(), placed(self._behind):
            metrics = self.loss.metrics(output, compared.targets)
        return HeadResult(
            micro_batch=micro_batch,
            samples=compared.samples,
            weight=compared.weight,
            counted=compared.counted,
            loss=compared.loss.detach(),
            metrics=metrics,
        )


_BODY: Mapping[Keeps, type[BodyRunner]] = {"nothing": Reconstruct, "input": Recompute, "graph": StashGraph}


def segment_runner(
    segment: Segment,
    modules: Mapping[str, Block],
    numerics: NumericsContext,
    loss: Loss,
    versions: ParameterVersions | None,
) -> SegmentRunner:
    """Return the runner that a segment's program asks for; `modules` are the stage's."""
    own = {name: modules[name] for name in segment.nodes}
    reads_samples = any(entry.edge.producer == INPUT for entry in segment.inputs)
    if segment.kind == "head":
        return HeadRunner(own, numerics, reads_samples=reads_samples, loss=loss)
    used = versions if segment.backward == "stored" else None
    return _BODY[segment.keeps](own, numerics, reads_samples=reads_samples, versions=used)

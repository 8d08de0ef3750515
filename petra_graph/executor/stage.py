"""One stage: forward, backward and update of its segments, following its program (PETRA algorithm 1, the worker of stage j).

    received --> [ segment ] --> [ segment ] --> sent          forward of m
    sent     <-- [ segment ] <-- [ segment ] <-- received      backward of m

Edges inside the stage are dictionaries of a call; edges to other stages go through the caller. The executor knows no
other stage, no device but its own, and no time.

Decision: the stage that sends a training message encodes it (`precision.channel_dtype`), and the stage that receives it
decodes it, both here, so that no runtime and no placement changes the bits; the cuts do, since edges inside a stage are
not encoded. Neither are samples and targets, nor anything in an evaluation. A reversible producer reconstructs from the activation that
its consumer returns, which has been encoded on the way there and again on the way back: along a chain of reversible stages every hop adds
its rounding.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from petra_graph.blocks import Block, Streams
from petra_graph.errors import placed
from petra_graph.executor.delayed_weights import DelayedWeights, copied_parameters
from petra_graph.executor.encoded import EncodedTensors, decode, encode
from petra_graph.executor.head import HeadResult, HeadRunner
from petra_graph.executor.numerics import NumericsContext
from petra_graph.executor.recorded import RecordedOperation, RecordedSegment, Recorder
from petra_graph.executor.runners import BodyRunner, Recompute, Reconstruct, StashGraph
from petra_graph.executor.update import Updater
from petra_graph.graph.node_graph import INPUT
from petra_graph.plugins.author_code import noted
from petra_graph.plugins.callback import Companion
from petra_graph.plugins.loss_and_metric import Loss
from petra_graph.plugins.optimizer import EARLIER, PREDICTED
from petra_graph.plugins.tensor_trees import Tree
from petra_graph.program.channels import Edge
from petra_graph.program.schedule import Verb, WeightVersions
from petra_graph.program.stage_program import Segment, StageProgram
from petra_graph.spec.model import Keeps

_BODY: Mapping[Keeps, type[BodyRunner]] = {"nothing": Reconstruct, "input": Recompute, "graph": StashGraph}
_NOTHING = nullcontext()
_OBSERVED = "replicas, the probe or a callback follow its operations"


class StageObserver:
    """Receives the operations of one stage. Every hook here does nothing: a subclass overrides the hooks that it needs.

    Tensors are the stage's own: an observer may keep them, and must not change them.
    """

    def forward(self, micro_batch: int, target: Tree | None) -> AbstractContextManager[None]:
        """Return the context of a forward; `target` is the head's."""
        return nullcontext()

    def backward(self, micro_batch: int) -> AbstractContextManager[None]:
        """Return the context of a backward."""
        return nullcontext()

    def update(self) -> AbstractContextManager[None]:
        """Return the context of an update."""
        return nullcontext()

    def segment_forward(self, micro_batch: int, segment: Segment, inputs: Streams) -> None:
        """Receive the inputs of a segment before its forward, samples as the data set stores them."""

    def segment_backward(self, micro_batch: int, segment: Segment, inputs: Streams) -> None:
        """Receive the inputs of a segment behind its backward, reconstructed or stored; the gradients of its parameters are complete for this micro-batch."""


class StageExecutor:
    """Executes one `StageProgram`."""

    def __init__(
        self,
        program: StageProgram,
        modules: Mapping[str, Block],
        numerics: NumericsContext,
        updater: Updater,
        loss: Loss,
    ) -> None:
        """Build the runners of a stage; `modules` are those of its nodes, on its device."""
        self.program, self.modules, self.updater = program, modules, updater
        self._located = placed(f"stage {program.index} ({', '.join(program.nodes)})")
        """Names the stage in problems of its update."""
        optimizer = None if updater.stage is None else updater.optimizer  # without delays, nothing is late
        self.predicted, self.earlier = (
            DelayedWeights(updater, name) if getattr(optimizer, name, None) is not None else None
            for name in (PREDICTED, EARLIER)
        )
        """What the stage's optimizer gives late passes."""
        self._stored = numerics.precision.channel_dtype
        self._encodes = self._stored != "as-streams"
        """Whether messages are other tensors than streams."""
        stored = [one for one in program.segments if one.backward == "stored" and one.kind != "head"]
        of_versions = {name: modules[name] for segment in stored for name in segment.nodes}
        self.versions = WeightVersions(partial(copied_parameters, of_versions)) if of_versions else None
        """The parameters that a backward may need as they were at the forward; None where none does."""
        self.runners: list[tuple[Segment, HeadRunner | BodyRunner]] = []
        self.head: HeadRunner | None = None
        self._sends: list[Sequence[tuple[Edge, bool]]] = []
        """Of each segment, where its outputs go, and whether they stay inside the stage."""
        self._returns: list[Sequence[tuple[Edge, slice, bool, bool]]] = []
        """Of each segment, what it sends back: edge, streams, whether their producer reconstructs from them, and whether it is inside the stage."""
        inside = {INPUT, *program.nodes}  # what no other stage sends
        for segment in program.segments:
            own = {name: modules[name] for name in segment.nodes}
            reads_samples = any(entry.edge.producer == INPUT for entry in segment.inputs)
            runner: HeadRunner | BodyRunner
            if segment.kind == "head":
                runner = self.head = HeadRunner(own, numerics, reads_samples=reads_samples, loss=loss)
            else:
                versions = self.versions if segment.backward == "stored" else None
                runner = _BODY[segment.keeps](own, numerics, reads_samples=reads_samples, versions=versions)
            returned, first = [], 0
            for entry in segment.inputs:
                streams = slice(first, first := first + entry.streams)
                if (producer := entry.edge.producer) != INPUT:
                    returned.append((entry.edge, streams, entry.returns_activation, producer in inside))
            self.runners.append((segment, runner))
            self._sends.append([(edge, edge.consumer in inside) for edge in segment.outputs])
            self._returns.append(returned)
        old_graphs = program.delayed and any(isinstance(runner, StashGraph) for _, runner in self.runners)
        self._in_graphs = tuple(one for module in modules.values() for one in module.parameters()) if old_graphs else ()
        """Parameters that an update changes while graphs wait which saved them; frozen ones, too, which callbacks may move."""
        self.observers: list[StageObserver] = []
        """They see every operation, in the order in which they came."""
        self.companions: dict[str, Companion] = {}
        """Of callbacks, by their names; they see every update."""

    def observe(self, observer: StageObserver) -> None:
        """Report all operations to `observer` as well from now on; it may follow gradients, so none of them is recorded any more."""
        self.observers.append(observer)
        if any(runner.recorded is not None for _, runner in self.runners):
            message = f"run.record: stage {self.program.index}: nothing is recorded: {_OBSERVED}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        for _, runner in self.runners:
            runner.recorded = None

    def record(self, recorder: Recorder) -> str:
        """Record operations from now on, and replay them; return why that cannot be, "" where it can."""
        if self.observers:
            return _OBSERVED
        if self.versions is not None or self.predicted is not None or self.earlier is not None:
            return "its passes have other parameters than the stage's own"
        bodies = [runner for _, runner in self.runners if isinstance(runner, Reconstruct | Recompute)]
        for runner in bodies:
            nodes, own = ", ".join(runner.modules), list(runner.modules.values())
            passes = (RecordedOperation(recorder, f"the {name} of {nodes}", own) for name in ("forward", "backward"))
            runner.recorded = RecordedSegment(*passes)
        return "" if bodies else "each segment is the head, or keeps its graph until its backward"

    def forward(
        self, micro_batch: int | None, received: MutableMapping[Edge, EncodedTensors], target: Tree | None
    ) -> tuple[Mapping[Edge, EncodedTensors], HeadResult | None]:
        """Run the forward of a micro-batch.

        Args:
            micro_batch: of a training, counted from the run's start; None: an evaluation batch, with running statistics and nothing kept.
            received: one entry an edge of `program.receives`; emptied, so that nothing outlives its use.
            target: the targets on the CPU, for the stage that holds the head.

        Returns:
            A message for each edge of `program.sends` to another stage, and the result of the stage that holds the head.
        """
        evaluates = micro_batch is None
        sent: dict[Edge, EncodedTensors] = {}
        result: HeadResult | None = None
        with torch.no_grad() if evaluates else self._around("forward", self.predicted, micro_batch, target):
            if self.versions is not None and micro_batch is not None:
                self.versions.begin(micro_batch)
            for (segment, runner), sends in zip(self.runners, self._sends, strict=True):
                inputs = self._taken(segment, received)
                if micro_batch is not None:
                    for observer in self.observers:
                        observer.segment_forward(micro_batch, segment, inputs)
                if isinstance(runner, HeadRunner):
                    result = runner.forward(micro_batch, inputs, target)
                    continue
                outputs = runner.run(None, inputs) if micro_batch is None else runner.forward(micro_batch, inputs)
                for edge, stays in sends:
                    if stays:
                        received[edge] = outputs
                    else:
                        sent[edge] = encode(outputs, self._stored) if self._encodes and not evaluates else outputs
                del inputs, outputs
        return sent, result

    def backward(
        self, micro_batch: int, received: MutableMapping[Edge, EncodedTensors], weight: float
    ) -> Mapping[Edge, EncodedTensors]:
        """Run the backward of a training micro-batch; parameter gradients join the window, and so does their weight.

        Args:
            micro_batch: counted from the run's start.
            received: one entry an edge of `program.sends`; emptied. A message has the gradients of the edge's streams and behind them, for a
                producer that reconstructs from it, its output (algorithm 1, lines 11 and 24).
            weight: of the micro-batch's targets: 1 where each of them counts for one (`HeadResult.weight`), by which the gradients are multiplied.

        Returns:
            A message for each edge of `program.receives` that comes from another stage.
        """
        with self._around("backward", self.earlier, micro_batch):
            sent: dict[Edge, EncodedTensors] = {}
            self.updater.accumulated(micro_batch, weight)
            for (segment, runner), returns in zip(reversed(self.runners), reversed(self._returns), strict=True):
                gradients, outputs = self._returned(segment, received)
                inputs, through = runner.backward(micro_batch, outputs, gradients)
                for observer in self.observers:
                    observer.segment_backward(micro_batch, segment, inputs)
                for edge, own, returns_activation, stays in returns:
                    message = (*through[own], *inputs[own]) if returns_activation else through[own]
                    if stays:
                        received[edge] = message
                    else:
                        sent[edge] = encode(message, self._stored) if self._encodes else message
            if self.versions is not None:
                self.versions.end(micro_batch)
            return sent

    def update(self, norm: Tensor | None = None) -> None:
        """Step with the window's mean gradient; `norm` as in `Updater.step`; RunFailed: that norm is not finite."""
        # Graphs that wait are differentiated at the new parameters (PACI), or at copies of the old ones: torch would take both for a mistake.
        with _unsafe_preserve_version_counter(self._in_graphs) if self._in_graphs else _NOTHING:
            with self._around("update", None):
                if self.versions is not None:
                    self.versions.before_step()
                for weights in (self.predicted, self.earlier):
                    if weights is not None:
                        weights.drop()
                with self._located:
                    self.updater.step(norm)
            for name, companion in self.companions.items():
                with torch.no_grad(), noted(f'callback "{name}"'):
                    companion.updated(self.updater.updates)

    def check(self) -> None:
        """Read the norms that wait to be read; RunFailed: one is not finite."""
        with self._located:
            self.updater.check()

    def set_training(self, mode: bool) -> None:
        """Switch all modules between training and evaluation."""
        for module in self.modules.values():
            module.train(mode)

    def _taken(self, segment: Segment, received: MutableMapping[Edge, EncodedTensors]) -> Streams:
        """Take what a segment reads from the messages that its stage has received."""
        if len(segment.inputs) == 1:
            message: Any = received.pop(segment.inputs[0].edge)
            return decode(message) if self._encodes else message
        return tuple(stream for entry in segment.inputs for stream in decode(received.pop(entry.edge)))

    def _returned(
        self, segment: Segment, received: MutableMapping[Edge, EncodedTensors]
    ) -> tuple[Streams, Streams | None]:
        """Take the gradients of a segment's outputs, summed over its consumers in declared order, and the outputs, if one of them returns them."""
        gradients: list[Streams] = []  # none of the head
        outputs: Streams | None = None
        for edge in segment.outputs:
            message: Any = received.pop(edge)
            own = decode(message) if self._encodes else message
            if edge == segment.activation_from:
                own, outputs = own[: len(own) // 2], own[len(own) // 2 :]
            gradients.append(own)
        if len(gradients) == 1:
            return gradients[0], outputs
        return tuple(reduce(torch.add, parts) for parts in zip(*gradients, strict=True)), outputs

    def _around(self, verb: Verb, weights: DelayedWeights | None, *arguments: Any) -> AbstractContextManager[object]:
        """Return the context of an operation: of all who observe it, and within those of the weights that it has."""
        if weights is None and not self.observers:
            return _NOTHING
        with ExitStack() as entered:
            for observer in self.observers:
                entered.enter_context(getattr(observer, verb)(*arguments))
            if weights is not None:
                entered.enter_context(weights.of(arguments[0]))
            return entered.pop_all()

"""One stage: forward, backward and update of its segments, following its program.

    received --> [ segment ] --> [ segment ] --> sent          forward of m
    sent     <-- [ segment ] <-- [ segment ] <-- received      backward of m

Edges inside the stage are dictionaries of a call; edges to other stages go through the caller. The executor knows no
other stage, no device but its own, and no time.

Decision: what crosses between two stages in training is encoded (`precision.channel_dtype`) here, by the stage that sends it, and
decoded by the one that receives it, so that no runtime and no placement changes the bits; the cuts do, since edges
inside a stage are not encoded. Neither are samples and targets, nor anything in an evaluation, whose result must not
depend on the batch's size or on the cuts. Each message is encoded alone. A reversible producer reconstructs from what its consumer
returns, which has been encoded on the way there and again on the way back: from a consumer that stores its input the second
time changes nothing (but an int8 scale's last bit), along a chain of reversible stages every hop adds its rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from contextlib import ExitStack
from functools import reduce

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.blocks import Block, Streams, frozen_statistics
from petra_graph.executor.encoded_tensors import EncodedTensors, decode, encode, total
from petra_graph.executor.numerics import NumericsContext
from petra_graph.executor.observer import StageObserver
from petra_graph.executor.segment_runners import (
    BodyRunner,
    HeadResult,
    HeadRunner,
    InFlight,
    Recompute,
    Reconstruct,
    ReconstructThenRecompute,
    SegmentRunner,
    StashGraph,
)
from petra_graph.executor.update import Updater
from petra_graph.executor.weight_versions import Parameters, ParameterVersions
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import Edge
from petra_graph.program.stage_program import Segment, StageProgram
from petra_graph.registry.contracts import Loss
from petra_graph.spec.model import Keeps, StoredDtype, Uses

_BODY: Mapping[tuple[Keeps, Uses], type[BodyRunner]] = {
    ("nothing", "current"): Reconstruct,
    ("nothing", "stored"): ReconstructThenRecompute,
    ("input", "current"): Recompute,
    ("input", "stored"): Recompute,
    ("graph", "current"): StashGraph,
    ("graph", "stored"): StashGraph,
}


@frozen(kw_only=True)
class BackwardMessage:
    """What a consumer sends back along an edge."""

    gradients: EncodedTensors
    activation: EncodedTensors | None
    """The producer's output, for a producer that reconstructs from it."""


@frozen(kw_only=True)
class Forwarded:
    """What a stage's forward gives."""

    sent: Mapping[Edge, EncodedTensors]
    result: HeadResult | None
    """From the stage that holds the head."""


@frozen(kw_only=True)
class Replayed:
    """What a stage's forward gives that nothing remembers."""

    sent: Mapping[Edge, EncodedTensors]
    loss: Tensor | None
    """From the stage that holds the head, with its graph."""


class StageExecutor:
    """Executes one `StageProgram`."""

    def __init__(
        self,
        program: StageProgram,
        modules: Mapping[str, Block],
        evaluation: NumericsContext,
        updater: Updater,
        loss: Loss,
    ) -> None:
        self.program = program
        self.modules = modules
        self.updater = updater
        self.precision = evaluation.precision
        self._inside = set(program.nodes)
        self.versions = _versions(program, modules)
        self._sent: InFlight[tuple[Tensor, ...]] = InFlight()
        """Sums of what each forward in flight sent: looked at only to find where numbers stopped being finite."""
        self._steps = [
            (segment, _cell(segment, modules, evaluation, loss, self.versions)) for segment in program.segments
        ]
        self._watcher = StageObserver()

    def watch(self, watcher: StageObserver) -> None:
        """Let somebody look on from now on."""
        self._watcher = watcher

    def forward(
        self, micro_batch: int, received: MutableMapping[Edge, EncodedTensors], target: Tensor | None
    ) -> Forwarded:
        """Run the forward of a training micro-batch.

        Args:
            micro_batch: counted from the run's start.
            received: one entry an edge of `program.receives`; emptied, so that nothing outlives its use.
            target: the targets, for the stage that holds the head.
        """
        with self._watcher.forward(micro_batch, target):
            return self._forward(micro_batch, received, target)

    def _forward(
        self, micro_batch: int, received: MutableMapping[Edge, EncodedTensors], target: Tensor | None
    ) -> Forwarded:
        sent: dict[Edge, EncodedTensors] = {}
        result: HeadResult | None = None
        if self.versions is not None:
            self.versions.begin(micro_batch)
        for segment, cell in self._steps:
            inputs = _take(segment, received)
            self._watcher.entered(micro_batch, segment, inputs)
            if isinstance(cell, HeadRunner):
                assert target is not None
                result = cell.forward_backward(micro_batch, inputs, target)
            else:
                assert isinstance(cell, BodyRunner)
                self._hand_on(segment, cell.forward(micro_batch, inputs), received, sent, self.precision.channel_dtype)
            del inputs
        self._sent.put(micro_batch, tuple(total(value) for carried in sent.values() for value in carried))
        if 1 < self.program.depth <= len(self._sent):  # A backward is next; it is not of this micro-batch.
            self._fetch()
        return Forwarded(sent=sent, result=result)

    def backward(
        self, micro_batch: int, received: MutableMapping[Edge, BackwardMessage]
    ) -> Mapping[Edge, BackwardMessage]:
        """Run the backward of a training micro-batch; parameter gradients join the window.

        Args:
            micro_batch: counted from the run's start.
            received: one entry an edge of `program.sends`; emptied.

        Returns:
            A message for each edge of `program.receives` that comes from another stage.
        """
        with self._watcher.backward(micro_batch):
            return self._backward(micro_batch, received)

    def _backward(
        self, micro_batch: int, received: MutableMapping[Edge, BackwardMessage]
    ) -> Mapping[Edge, BackwardMessage]:
        sent: dict[Edge, BackwardMessage] = {}
        self._sent.take(micro_batch)
        self._fetch()
        for segment, cell in reversed(self._steps):
            messages = [received.pop(edge) for edge in segment.outputs]
            gradients = _summed([decode(message.gradients) for message in messages])
            outputs = next((decode(message.activation) for message in messages if message.activation is not None), None)
            del messages
            found = cell.backward(micro_batch, outputs, gradients)
            self._watcher.left(micro_batch, segment, found)
            first = 0
            for entry in segment.inputs:
                own = slice(first, first := first + entry.streams)
                if entry.edge.producer == INPUT:
                    continue
                inside = entry.edge.producer in self._inside
                stored = "as-streams" if inside else self.precision.channel_dtype
                activation = encode(found.inputs[own], stored) if entry.returns_activation else None
                message = BackwardMessage(gradients=encode(found.gradients[own], stored), activation=activation)
                (received if inside else sent)[entry.edge] = message
        self.updater.accumulated()
        if self.versions is not None:
            self.versions.end(micro_batch)
        return sent

    def update(self, norm: Tensor | None = None) -> None:
        """Step with the window's mean gradient; `norm` as in `Updater.step`."""
        with self._watcher.update():
            if self.versions is not None:
                self.versions.before_step()
            self.updater.step(norm)

    def replay(
        self,
        micro_batch: int,
        received: MutableMapping[Edge, EncodedTensors],
        target: Tensor | None,
        parameters: Parameters,
    ) -> Replayed:
        """Run the forward of a training micro-batch with a graph and other parameters; nothing remembers it.

        Args:
            micro_batch: whose random numbers are drawn.
            received: as in `forward`.
            target: as in `forward`.
            parameters: of all nodes; the graph ends in those that require gradients.
        """
        sent: dict[Edge, EncodedTensors] = {}
        loss: Tensor | None = None
        with torch.enable_grad(), ExitStack() as frozen:
            for module in self.modules.values():
                frozen.enter_context(frozen_statistics(module))
            for segment, cell in self._steps:
                outputs = cell.run(micro_batch, _take(segment, received), parameters)
                if isinstance(cell, HeadRunner):
                    assert target is not None
                    loss = cell.loss(outputs[0], target)
                else:
                    self._hand_on(segment, outputs, received, sent, "as-streams")
        return Replayed(sent=sent, loss=loss)

    def evaluate(self, received: MutableMapping[Edge, EncodedTensors], target: Tensor | None) -> Forwarded:
        """Run the forward of an evaluation batch, with running statistics and nothing kept."""
        sent: dict[Edge, EncodedTensors] = {}
        result: HeadResult | None = None
        with torch.no_grad():
            for segment, cell in self._steps:
                inputs = _take(segment, received)
                if isinstance(cell, HeadRunner):
                    assert target is not None
                    result = cell.eval_step(inputs, target)
                else:
                    self._hand_on(segment, cell.evaluate(inputs), received, sent, "as-streams")
        return Forwarded(sent=sent, result=result)

    def sent_finite(self, micro_batch: int) -> bool:
        """Whether everything that the forward of a micro-batch in flight sent to other stages was finite."""
        return all(bool(torch.isfinite(total)) for at, totals in self._sent if at == micro_batch for total in totals)

    def set_training(self, mode: bool) -> None:
        """Switch all modules between training and evaluation."""
        for module in self.modules.values():
            module.train(mode)

    def _hand_on(
        self,
        segment: Segment,
        outputs: Streams,
        inside: MutableMapping[Edge, EncodedTensors],
        sent: MutableMapping[Edge, EncodedTensors],
        channel_dtype: StoredDtype,
    ) -> None:
        for edge in segment.outputs:
            if edge.consumer in self._inside:
                inside[edge] = outputs
            else:
                sent[edge] = encode(outputs, channel_dtype)

    def _fetch(self) -> None:
        for _, cell in self._steps:
            if isinstance(cell, Recompute):
                cell.fetch()


def _versions(program: StageProgram, modules: Mapping[str, Block]) -> ParameterVersions | None:
    """Return the versions of those parameters that a backward will ask for; None where none will."""
    names = [
        name
        for segment in program.segments
        if segment.backward == "stored" and segment.kind != "head"
        for name in segment.nodes
    ]
    return ParameterVersions({name: modules[name] for name in names}) if names else None


def _cell(
    segment: Segment,
    modules: Mapping[str, Block],
    evaluation: NumericsContext,
    loss: Loss,
    versions: ParameterVersions | None,
) -> SegmentRunner:
    own = {name: modules[name] for name in segment.nodes}
    reads_samples = any(entry.edge.producer == INPUT for entry in segment.inputs)
    if segment.kind == "head":
        return HeadRunner(own, evaluation, reads_samples=reads_samples, loss=loss)
    cell = _BODY[segment.keeps, segment.backward]
    asked = versions if segment.backward == "stored" else None
    return cell(own, evaluation, reads_samples=reads_samples, versions=asked)


def _take(segment: Segment, received: MutableMapping[Edge, EncodedTensors]) -> Streams:
    return tuple(stream for entry in segment.inputs for stream in decode(received.pop(entry.edge)))


def _summed(gradients: list[Streams]) -> Streams:
    """Sum the consumers' gradients, stream by stream, in declared order; () for the head, which has no consumer."""
    if not gradients:
        return ()
    return tuple(reduce(torch.add, parts) for parts in zip(*gradients, strict=True))

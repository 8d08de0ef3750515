"""One stage: forward, backward and update of its segments, following its program.

    received --> [ segment ] --> [ segment ] --> sent          forward of m
    sent     <-- [ segment ] <-- [ segment ] <-- received      backward of m

Edges inside the stage are dictionaries of a call; edges to other stages go through the caller. The executor knows no
other stage, no device but its own, and no time.

Decision: the stage that sends a training message encodes it (`precision.channel_dtype`), and the stage that receives it
decodes it, both here, so that no runtime and no placement changes the bits; the cuts do, since edges inside a stage are
not encoded. Neither are samples and targets, nor anything in an evaluation, whose result must not depend on the batch's
size or on the cuts. Each message is encoded alone. A reversible producer reconstructs from the activation that its consumer
returns, which has been encoded on the way there and again on the way back: from a consumer that stores its input the
second time changes nothing (but an int8 scale's last bit), along a chain of reversible stages every hop adds its rounding.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from petra_graph.blocks import Block, Streams, frozen_statistics
from petra_graph.errors import placed
from petra_graph.executor.delayed_weights import DelayedWeights
from petra_graph.executor.encoded_tensors import EncodedTensors, decode, encode, encodes, total
from petra_graph.executor.numerics import NumericsContext
from petra_graph.executor.reconstruct_recompute_stash import (
    BodyRunner,
    HeadResult,
    HeadRunner,
    InFlight,
    Recompute,
    Reconstruct,
    segment_runner,
)
from petra_graph.executor.recorded_operations import RecordedSegment, Recorder
from petra_graph.executor.stage_observer import StageObserver, StageObservers
from petra_graph.executor.stage_parameters import Parameters, ParameterVersions, copied_parameters
from petra_graph.executor.stage_results import BackwardMessage, Forwarded, Replayed
from petra_graph.executor.stage_update import Updater
from petra_graph.graph.node_graph import INPUT
from petra_graph.kinds.callback import Companion
from petra_graph.kinds.loss import Loss
from petra_graph.kinds.optimizer import EARLIER, PREDICTED
from petra_graph.kinds.tensor_trees import Tree
from petra_graph.program.channels import Edge
from petra_graph.program.stage_program import Segment, StageProgram
from petra_graph.program.weight_versions import WeightVersions

_OBSERVED = "replicas, the probe or a callback follow its operations"


class StageExecutor:
    """Executes one `StageProgram`."""

    def __init__(
        self,
        program: StageProgram,
        modules: Mapping[str, Block],
        numerics: NumericsContext,
        updater: Updater,
        loss: Loss,
        *,
        read_interval: int = 1,
    ) -> None:
        """Build the runners of a stage.

        Args:
            modules: of its nodes, on its device.
            read_interval: micro-batches between two readings of the stage's device, by `deferred_reads`.
        """
        self.program = program
        self.modules = modules
        self.updater = updater
        self._located = placed(f"stage {program.index} ({', '.join(program.nodes)})")
        """Names the stage in problems of its update."""
        self.predicted = DelayedWeights(updater, PREDICTED, self._located)
        self.earlier = DelayedWeights(updater, EARLIER, self._located)
        self._predicts, self._corrects = self.predicted.asks, self.earlier.asks
        self.precision = numerics.precision
        self._numerics = numerics
        self._inside = set(program.nodes)
        self._encodes = encodes(self.precision.channel_dtype, numerics.dtype)
        """Whether messages are other tensors than streams."""
        self.versions = _versions(program, modules)
        self.read_interval = read_interval
        self.reads_later = updater.deferred or numerics.deferred
        """Whether `check` may have something to read."""
        self.sums_in_flight: InFlight[tuple[Tensor, ...]] = InFlight()
        """Sums of what each forward in flight sent, for `sent_finite`."""
        self._weights: InFlight[float] = InFlight()
        """Of the head's micro-batches."""
        self._past_sums: deque[tuple[int, tuple[Tensor, ...]]] = deque(maxlen=2 * (read_interval - 1))
        """Those of micro-batches behind their backward, for as long as the head's loss may not have been read."""
        self.runners = [
            (segment, segment_runner(segment, modules, numerics, loss, self.versions)) for segment in program.segments
        ]
        self._backwards = [
            (segment, runner, tuple(_returns(segment, self._inside))) for segment, runner in reversed(self.runners)
        ]
        """From the last segment to the first, each with what it sends back."""
        self._fetching = [one for _, one in self.runners if isinstance(one, Recompute) and one.store.copies is not None]
        """The runners whose inputs wait in host memory."""
        self.observers = StageObservers()
        """They see every operation."""
        self.companions: dict[str, Companion] = {}
        """Of callbacks, by their names; they see every update."""

    def observe(self, observer: StageObserver) -> None:
        """Report all operations to `observer` as well from now on; it may follow gradients, so none of them is recorded any more."""
        self.observers.append(observer)
        if any(runner.recorded is not None for _, runner in self.runners):
            message = f"run.cuda_graphs: stage {self.program.index}: nothing is recorded: {_OBSERVED}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        for _, runner in self.runners:
            runner.recorded = None

    def record(self, recorder: Recorder) -> str:
        """Record operations from now on, and replay them; return why that cannot be, "" where it can."""
        if self.observers:
            return _OBSERVED
        if self.versions is not None or self._predicts or self._corrects:
            return "its passes have other parameters than the stage's own"
        if self._numerics.grid_bits is not None:
            return "the host checks the range of streams on a grid"
        for _, runner in self.runners:
            if isinstance(runner, Reconstruct | Recompute):
                runner.recorded = RecordedSegment.of(recorder, runner.modules)
        recorded = any(runner.recorded is not None for _, runner in self.runners)
        return "" if recorded else "each segment is the head, or keeps its graph until its backward"

    def forward(
        self, micro_batch: int, received: MutableMapping[Edge, EncodedTensors], target: Tree | None
    ) -> Forwarded:
        """Run the forward of a training micro-batch.

        Args:
            micro_batch: counted from the run's start.
            received: one entry an edge of `program.receives`; emptied, so that nothing outlives its use.
            target: the targets on the CPU, for the stage that holds the head.
        """
        if self.observers or self._predicts:
            with self.observers.forward(micro_batch, target), self.predicted.of(micro_batch):
                return self._forward(micro_batch, received, target)
        return self._forward(micro_batch, received, target)

    def _forward(
        self, micro_batch: int, received: MutableMapping[Edge, EncodedTensors], target: Tree | None
    ) -> Forwarded:
        sent: dict[Edge, EncodedTensors] = {}
        result: HeadResult | None = None
        if self.versions is not None:
            self.versions.begin(micro_batch)
        for segment, runner in self.runners:
            plain = len(segment.inputs) == 1 and not self._encodes
            inputs: Any = received.pop(segment.inputs[0].edge) if plain else _take(segment, received)
            for observer in self.observers:
                observer.segment_forward(micro_batch, segment, inputs)
            if isinstance(runner, BodyRunner):
                outputs = runner.forward(micro_batch, inputs)
                for edge in segment.outputs:
                    inside = edge.consumer in self._inside
                    message = outputs if inside or not self._encodes else encode(outputs, self.precision.channel_dtype)
                    (received if inside else sent)[edge] = message
                    del message
                del outputs
            elif isinstance(runner, HeadRunner):
                assert target is not None
                result = runner.forward_backward(micro_batch, inputs, target)
                self._weights.append((micro_batch, result.weight / result.samples))
            del inputs
        sums: list[Tensor] = []
        for tensors in sent.values():
            sums += map(total if self._encodes else Tensor.sum, tensors)  # type: ignore[arg-type]
        self.sums_in_flight.append((micro_batch, tuple(sums)))
        if self._fetching and 1 < self.program.depth <= len(self.sums_in_flight):
            self._fetch()  # A backward is next; it is not of this micro-batch.
        return Forwarded(sent=sent, result=result)

    def backward(
        self, micro_batch: int, received: MutableMapping[Edge, BackwardMessage]
    ) -> Mapping[Edge, BackwardMessage]:
        """Run the backward of a training micro-batch; parameter gradients join the window, and so does their weight.

        Args:
            micro_batch: counted from the run's start.
            received: one entry an edge of `program.sends`; emptied.

        Returns:
            A message for each edge of `program.receives` that comes from another stage.
        """
        if self.observers or self._corrects:
            with self.observers.backward(micro_batch), self.earlier.of(micro_batch):
                return self._backward(micro_batch, received)
        return self._backward(micro_batch, received)

    def _backward(
        self, micro_batch: int, received: MutableMapping[Edge, BackwardMessage]
    ) -> Mapping[Edge, BackwardMessage]:
        sent: dict[Edge, BackwardMessage] = {}
        gradients: Any
        outputs: Any
        self._past_sums.append(self.sums_in_flight.popleft())
        if self._fetching:
            self._fetch()
        weight = self._weights.take(micro_batch) if self._weights else next(iter(received.values())).weight
        self.updater.accumulated(micro_batch, weight)
        for segment, runner, returns in self._backwards:
            if len(segment.outputs) == 1 and not self._encodes:
                message = received.pop(segment.outputs[0])
                gradients, outputs = message.gradients, message.activation
                del message
            else:
                gradients, outputs = _joined([received.pop(edge) for edge in segment.outputs])
            reverse = runner.backward(micro_batch, outputs, gradients)
            for observer in self.observers:
                observer.segment_reconstructed(micro_batch, segment, reverse.inputs)
                observer.segment_backward(micro_batch, segment)
            for edge, own, returns_activation, inside in returns:
                returned: EncodedTensors = reverse.gradients[own]
                activation: EncodedTensors | None = reverse.inputs[own] if returns_activation else None
                if self._encodes and not inside:
                    returned = encode(reverse.gradients[own], self.precision.channel_dtype)
                    activation = (
                        encode(reverse.inputs[own], self.precision.channel_dtype) if returns_activation else None
                    )
                message = BackwardMessage(gradients=returned, activation=activation, weight=weight)
                (received if inside else sent)[edge] = message
        if self.versions is not None:
            self.versions.end(micro_batch)
        return sent

    def update(self, norm: Tensor | None = None) -> None:
        """Step with the window's mean gradient; `norm` as in `Updater.step`.

        Raises:
            RunFailed: that norm is not finite.
        """
        if self.observers:
            with self.observers.update():
                self._update(norm)
        else:
            self._update(norm)
        for companion in self.companions.values():
            companion.updated(self.updater.updates)

    def _update(self, norm: Tensor | None) -> None:
        if self.versions is not None:
            self.versions.before_step()
        if self._predicts:
            self.predicted.drop()
        if self._corrects:
            self.earlier.drop()
        with self._located:
            self.updater.step(norm)

    def check(self) -> None:
        """Read the norms and magnitudes that wait to be read.

        Raises:
            RunFailed: one is out of its range.
        """
        with self._located:
            self.updater.check()
        self._numerics.check()

    def replay(
        self,
        micro_batch: int,
        received: MutableMapping[Edge, EncodedTensors],
        target: Tree | None,
        parameters: Parameters,
    ) -> Replayed:
        """Run the forward of a training micro-batch with a graph and other parameters; it leaves no trace.

        Args:
            micro_batch: whose random numbers are drawn.
            received: as in `forward`.
            target: as in `forward`.
            parameters: of all nodes; the graph ends in those that require gradients.
        """
        sent: dict[Edge, EncodedTensors] = {}
        loss: Tensor | None = None
        with torch.enable_grad(), frozen_statistics(*self.modules.values()):
            for segment, runner in self.runners:
                outputs = runner.run(micro_batch, _take(segment, received), parameters)
                if isinstance(runner, HeadRunner):
                    assert target is not None
                    compared = runner.compare(micro_batch, runner.returned(outputs), target)
                    loss = compared.loss * compared.share
                else:
                    self._hand_on(segment, outputs, received, sent)
        return Replayed(sent=sent, loss=loss)

    def evaluate(self, received: MutableMapping[Edge, EncodedTensors], target: Tree | None) -> Forwarded:
        """Run the forward of an evaluation batch, with running statistics and nothing kept."""
        sent: dict[Edge, EncodedTensors] = {}
        result: HeadResult | None = None
        with torch.no_grad():
            for segment, runner in self.runners:
                inputs = _take(segment, received)
                if isinstance(runner, HeadRunner):
                    assert target is not None
                    result = runner.eval_step(inputs, target)
                else:
                    self._hand_on(segment, runner.run(None, inputs), received, sent)
        return Forwarded(sent=sent, result=result)

    def sent_finite(self, micro_batch: int) -> bool:
        """Whether all tensors that the forward of a recent micro-batch sent to other stages were finite."""
        recent = (*self._past_sums, *self.sums_in_flight)
        return all(bool(torch.isfinite(one)) for m, totals in recent if m == micro_batch for one in totals)

    def set_training(self, mode: bool) -> None:
        """Switch all modules between training and evaluation."""
        for module in self.modules.values():
            module.train(mode)

    def _hand_on(
        self,
        segment: Segment,
        outputs: Streams,
        received: MutableMapping[Edge, EncodedTensors],
        sent: MutableMapping[Edge, EncodedTensors],
    ) -> None:
        """Add a segment's outputs to what this stage's segments receive, or to what the stage sends."""
        for edge in segment.outputs:
            (received if edge.consumer in self._inside else sent)[edge] = outputs

    def _fetch(self) -> None:
        for runner in self._fetching:
            runner.fetch()


def _versions(program: StageProgram, modules: Mapping[str, Block]) -> ParameterVersions | None:
    """Return the versions of the parameters that a backward may need at an older version; None where none does."""
    stored = [segment for segment in program.segments if segment.backward == "stored" and segment.kind != "head"]
    names = [name for segment in stored for name in segment.nodes]
    own = {name: modules[name] for name in names}
    return WeightVersions(partial(copied_parameters, own)) if own else None


def _returns(segment: Segment, inside: Collection[str]) -> Iterator[tuple[Edge, slice, bool, bool]]:
    """Yield where a segment sends something back: edge, streams, whether their producer reconstructs from them, and whether it is inside the stage."""
    first = 0
    for entry in segment.inputs:
        own = slice(first, first := first + entry.streams)
        if entry.edge.producer != INPUT:
            yield entry.edge, own, entry.returns_activation, entry.edge.producer in inside


def _take(segment: Segment, received: MutableMapping[Edge, EncodedTensors]) -> Streams:
    streams: Streams = ()
    for entry in segment.inputs:
        streams += decode(received.pop(entry.edge))
    return streams


def _joined(messages: list[BackwardMessage]) -> tuple[Streams, Streams | None]:
    """Sum the consumers' gradients, stream by stream, in declared order, () for the head; with the activation of the first that has one."""
    gradients = [decode(message.gradients) for message in messages]
    summed = (
        gradients[0]
        if len(gradients) == 1
        else tuple(reduce(torch.add, parts) for parts in zip(*gradients, strict=True))
    )
    activation = next((message.activation for message in messages if message.activation is not None), None)
    return summed, None if activation is None else decode(activation)

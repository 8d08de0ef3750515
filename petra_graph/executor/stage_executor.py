"""One stage: forward, backward and update of its segments, following its program (PETRA algorithm 1, the worker of stage j).

    received --> [ segment ] --> [ segment ] --> sent          forward of m
    sent     <-- [ segment ] <-- [ segment ] <-- received      backward of m

Edges inside the stage are dictionaries of a call; edges to other stages go through the caller. The executor knows no
other stage, no device but its own, and no time.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Mapping, MutableMapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from petra_graph.blocks import Block
from petra_graph.errors import placed
from petra_graph.executor.encoded_tensors import EncodedTensors, encode, encodes, total
from petra_graph.executor.head import HeadResult, HeadRunner
from petra_graph.executor.messages import BackwardMessage, Forwarded, join_messages, returned_edges, take_inputs
from petra_graph.executor.numerics import NumericsContext
from petra_graph.executor.optimizer_weights import DelayedWeights
from petra_graph.executor.recorded_operations import RecordedSegment, Recorder
from petra_graph.executor.runners import BodyRunner, InFlight, Recompute, Reconstruct, SegmentRunner, StashGraph
from petra_graph.executor.stage_observer import StageObserver, entered
from petra_graph.executor.stage_parameters import stored_versions
from petra_graph.executor.stage_update import Updater
from petra_graph.graph.node_graph import INPUT
from petra_graph.kinds.callback import Companion
from petra_graph.kinds.loss import Loss
from petra_graph.kinds.optimizer import EARLIER, PREDICTED
from petra_graph.kinds.tensor_trees import Tree
from petra_graph.program.channels import Edge
from petra_graph.program.stage_program import Segment, StageProgram
from petra_graph.spec.model import Keeps

_BODY: Mapping[Keeps, type[BodyRunner]] = {"nothing": Reconstruct, "input": Recompute, "graph": StashGraph}
_NOTHING = nullcontext()
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
        self.predicted, self.earlier = self._delayed_weights(PREDICTED), self._delayed_weights(EARLIER)
        self.precision = numerics.precision
        self._numerics = numerics
        self._inside = {INPUT, *program.nodes}
        """What no other stage sends."""
        self._encodes = encodes(self.precision.channel_dtype, numerics.dtype)
        """Whether messages are other tensors than streams."""
        self.versions = stored_versions(program, modules)
        self.read_interval = read_interval
        self.reads_later = updater.deferred or numerics.deferred
        """Whether `check` may have something to read."""
        self.sums_in_flight: InFlight[tuple[Tensor, ...]] = InFlight()
        """Sums of what each forward in flight sent, and had not received, for `sent_finite`."""
        self._weights: InFlight[float] = InFlight()
        """Of the head's micro-batches."""
        self._past_sums: deque[tuple[int, tuple[Tensor, ...]]] = deque(maxlen=2 * (read_interval - 1))
        """Those of micro-batches behind their backward, for as long as the head's loss may not have been read."""
        self.runners = [(segment, self._runner(segment, loss)) for segment in program.segments]
        self._backwards = [
            (segment, runner, tuple(returned_edges(segment, self._inside)))
            for segment, runner in reversed(self.runners)
        ]
        """From the last segment to the first, each with what it sends back."""
        self._fetching = [one for _, one in self.runners if isinstance(one, Recompute) and one.store.copies is not None]
        """The runners whose inputs wait in host memory."""
        self.observers: list[StageObserver] = []
        """They see every operation, in the order in which they came."""
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
        if self.versions is not None or self.predicted is not None or self.earlier is not None:
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
        if not self.observers and self.predicted is None:
            return self._forward(micro_batch, received, target)
        with entered(observer.forward(micro_batch, target) for observer in self.observers) as around:
            if self.predicted is not None:
                around.enter_context(self.predicted.of(micro_batch))
            return self._forward(micro_batch, received, target)

    def _forward(
        self, micro_batch: int, received: MutableMapping[Edge, EncodedTensors], target: Tree | None
    ) -> Forwarded:
        sent: dict[Edge, EncodedTensors] = {}
        sums: list[Tensor] = []
        result: HeadResult | None = None
        if self.versions is not None:
            self.versions.begin(micro_batch)
        for segment, runner in self.runners:
            plain = len(segment.inputs) == 1 and not self._encodes
            inputs: Any = received.pop(segment.inputs[0].edge) if plain else take_inputs(segment, received)
            for observer in self.observers:
                observer.segment_forward(micro_batch, segment, inputs)
            if isinstance(runner, BodyRunner):
                outputs = runner.forward(micro_batch, inputs)
                passed = inputs if plain and segment.inputs[0].edge.producer not in self._inside else ()
                for edge in segment.outputs:
                    inside = edge.consumer in self._inside
                    message = outputs if inside or not self._encodes else encode(outputs, self.precision.channel_dtype)
                    (received if inside else sent)[edge] = message
                    if not inside:
                        sums += [total(one) for one in message if all(one is not other for other in passed)]
                    del message
                del outputs, passed
            elif isinstance(runner, HeadRunner):
                assert target is not None
                result = runner.forward_backward(micro_batch, inputs, target)
                self._weights.append((micro_batch, result.weight / result.samples))
            del inputs
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
        if not self.observers and self.earlier is None:
            return self._backward(micro_batch, received)
        with entered(observer.backward(micro_batch) for observer in self.observers) as around:
            if self.earlier is not None:
                around.enter_context(self.earlier.of(micro_batch))
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
                gradients, outputs = join_messages([received.pop(edge) for edge in segment.outputs])
            reverse = runner.backward(micro_batch, outputs, gradients)
            for observer in self.observers:
                observer.segment_reconstructed(micro_batch, segment, reverse.inputs)
                observer.segment_backward(micro_batch, segment)
            for edge, own, returns_activation, inside in returns:
                message = BackwardMessage(
                    gradients=reverse.gradients[own],
                    activation=reverse.inputs[own] if returns_activation else None,
                    weight=weight,
                )
                if self._encodes and not inside:
                    message = message.encoded(self.precision.channel_dtype)
                (received if inside else sent)[edge] = message
        if self.versions is not None:
            self.versions.end(micro_batch)
        return sent

    def update(self, norm: Tensor | None = None) -> None:
        """Step with the window's mean gradient; `norm` as in `Updater.step`.

        Raises:
            RunFailed: that norm is not finite.
        """
        with entered(observer.update() for observer in self.observers) if self.observers else _NOTHING:
            if self.versions is not None:
                self.versions.before_step()
            if self.predicted is not None:
                self.predicted.drop()
            if self.earlier is not None:
                self.earlier.drop()
            with self._located:
                self.updater.step(norm)
        for companion in self.companions.values():
            companion.updated(self.updater.updates)

    def check(self) -> None:
        """Read the norms and magnitudes that wait to be read.

        Raises:
            RunFailed: one is out of its range.
        """
        with self._located:
            self.updater.check()
        self._numerics.check()

    def evaluate(self, received: MutableMapping[Edge, EncodedTensors], target: Tree | None) -> Forwarded:
        """Run the forward of an evaluation batch, with running statistics and nothing kept."""
        sent: dict[Edge, EncodedTensors] = {}
        result: HeadResult | None = None
        with torch.no_grad():
            for segment, runner in self.runners:
                inputs = take_inputs(segment, received)
                if isinstance(runner, HeadRunner):
                    assert target is not None
                    result = runner.eval_step(inputs, target)
                else:
                    outputs = runner.run(None, inputs)
                    for edge in segment.outputs:
                        (received if edge.consumer in self._inside else sent)[edge] = outputs
        return Forwarded(sent=sent, result=result)

    def sent_finite(self, micro_batch: int) -> bool:
        """Whether all tensors that the forward of a recent micro-batch sent to other stages were finite, but for those that it had received."""
        recent = (*self._past_sums, *self.sums_in_flight)
        return all(bool(torch.isfinite(one)) for m, totals in recent if m == micro_batch for one in totals)

    def set_training(self, mode: bool) -> None:
        """Switch all modules between training and evaluation."""
        for module in self.modules.values():
            module.train(mode)

    def _delayed_weights(self, method: str) -> DelayedWeights | None:
        """Return what the stage's optimizer gives late passes; None if it does not, or needs no delays."""
        asked = self.updater.stage is not None and getattr(self.updater.optimizer, method, None) is not None
        return DelayedWeights(self.updater, method, self._located) if asked else None

    def _runner(self, segment: Segment, loss: Loss) -> SegmentRunner:
        own = {name: self.modules[name] for name in segment.nodes}
        reads_samples = any(entry.edge.producer == INPUT for entry in segment.inputs)
        if segment.kind == "head":
            return HeadRunner(own, self._numerics, reads_samples=reads_samples, loss=loss)
        versions = self.versions if segment.backward == "stored" else None
        return _BODY[segment.keeps](own, self._numerics, reads_samples=reads_samples, versions=versions)

    def _fetch(self) -> None:
        for runner in self._fetching:
            runner.fetch()

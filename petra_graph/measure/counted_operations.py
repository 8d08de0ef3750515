"""The operations of the executor's segment runners on one node, run and counted.

Decision: the runners themselves run, on tensors without values. So the planner's numbers follow the executor, and no
second description of its operations has to be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from attrs import frozen
from torch import Tensor, nn

from petra_graph.blocks import Block, Head, Reversible, Streams, frozen_statistics
from petra_graph.executor.head import HeadRunner
from petra_graph.executor.numerics import NumericsContext
from petra_graph.executor.runners import (
    Recompute,
    Reconstruct,
    SegmentRunner,
    StashGraph,
)
from petra_graph.measure.tally import Lap, Tally, distinct_bytes, storages
from petra_graph.plugins.loss_and_metric import Loss
from petra_graph.plugins.tensor_trees import Tree, main
from petra_graph.program.node_costs import Operation, Work

T = TypeVar("T", bound=SegmentRunner)


@frozen(kw_only=True, slots=False)
class WithoutValues(NumericsContext):
    """Numerics without autocast on the meta device, whose tensors autocast does not know."""

    def arithmetic(self) -> AbstractContextManager[None]:
        """Return a context with the arithmetic of a device with values."""
        return nullcontext() if self.device.type == "meta" else super().arithmetic()


def faked(module: Block) -> Block:
    """Move a module from the meta device to the CPU of the active fake tensor mode; tensors that are not buffers stay."""
    made: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
            is_parameter = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
        return made[id(tensor)]

    for part in module.modules():
        for held in (part._parameters, part._buffers):  # noqa: SLF001  torch converts modules so
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = fake(tensor)  # type: ignore[assignment]
    return module


@frozen(kw_only=True)
class NodeTrial:
    """One node, built and placed, and its inputs."""

    name: str
    module: Block
    numerics: NumericsContext
    reads_samples: bool
    reversible: bool
    """Whether the node is: its inverse is known to return its inputs."""
    inputs: Streams

    def runner(self, of: type[T], **more: Any) -> T:
        return of({self.name: self.module}, self.numerics, reads_samples=self.reads_samples, **more)

    def drop_gradients(self) -> None:
        self.module.zero_grad(set_to_none=True)


def count_operations(trial: NodeTrial, loss: Loss, targets: Tensor) -> tuple[Streams, Mapping[Operation, Work]]:
    """Return a node's outputs, and the work of all operations that a node of its class may meet in training.

    Args:
        targets: the head's, if the loss accepts them; else targets are like the head's output.
    """
    if isinstance(trial.module, Head):
        return (), {"forward_backward": _head(trial, loss, targets)}
    runner = trial.runner(Reconstruct)
    with Tally() as tally:
        outputs = runner.run_without_graph(0, trial.inputs)
        forward = tally.lap()
    work: dict[Operation, Work] = {"forward": work_of(forward, shares=_shares(outputs, trial.inputs))}
    # The gradient and the activation of a message have memory of their own: they are not the tensors that were sent.
    gradients = tuple(map(torch.zeros_like, outputs))
    work["recompute"] = _recompute(trial, gradients)
    work["record"], work["replay"] = _recorded(trial, gradients)
    if isinstance(trial.module, Reversible) and (trial.reversible or len(outputs) == len(trial.inputs)):
        returned = tuple(map(torch.zeros_like, outputs))
        work["invert"] = _invert(runner, returned)
        work["reverse"] = _reverse(trial, runner, returned, gradients)
    return outputs, work


def _recompute(trial: NodeTrial, gradients: Streams) -> Work:
    runner = trial.runner(Recompute)

    def run() -> Streams:
        runner.buffer.append((0, trial.inputs))
        return runner.backward(0, None, gradients).gradients

    return _differentiated(trial, run, (*gradients, *trial.inputs))


def _reverse(trial: NodeTrial, runner: Reconstruct, outputs: Streams, gradients: Streams) -> Work:
    def run() -> Streams:
        reverse = runner.backward(0, outputs, gradients)
        return (*reverse.inputs, *reverse.gradients)

    return _differentiated(trial, run, (*outputs, *gradients))


def _differentiated(trial: NodeTrial, run: Callable[[], Streams], arguments: Streams) -> Work:
    """Run twice: the first run allocates parameter gradients, the second one adds to them."""
    trial.drop_gradients()
    with Tally() as tally:
        results = run()
        allocating = tally.lap()
        del results
        tally.lap()
        results = run()
        adding = tally.lap()
    trial.drop_gradients()
    return work_of(allocating, adding, shares=_shares(results, arguments))


def _recorded(trial: NodeTrial, gradients: Streams) -> tuple[Work, Work]:
    runner = trial.runner(StashGraph)
    trial.drop_gradients()
    laps: list[tuple[Lap, Lap]] = []
    with Tally() as tally:
        for _ in range(2):
            outputs = runner.forward(0, trial.inputs)
            record = tally.lap()
            results = runner.backward(0, None, gradients).gradients
            laps.append((record, tally.lap()))
            shared = _shares(outputs, trial.inputs), _shares(results, (*gradients, *trial.inputs))
            own = _own_bytes(outputs, shared[0])
            del outputs, results
            tally.lap()
    trial.drop_gradients()
    (record, allocating), (_, adding) = laps
    replay = work_of(allocating, adding, shares=shared[1])
    return work_of(record, kept=record.left_bytes - own, shares=shared[0]), replay


def _invert(runner: Reconstruct, outputs: Streams) -> Work:
    with Tally() as tally:
        inputs = runner.invert(0, outputs)
        lap = tally.lap()
    return work_of(lap, shares=_shares(inputs, outputs))


def _head(trial: NodeTrial, loss: Loss, targets: Tree) -> Work:
    runner = trial.runner(HeadRunner, loss=loss)
    target = _accepted(runner, trial, targets)

    def run() -> Streams:
        runner.forward_backward(0, trial.inputs, target)
        return runner.pending.take(0).gradients

    return _differentiated(trial, run, trial.inputs)


def _accepted(runner: HeadRunner, trial: NodeTrial, targets: Tree) -> Tree:
    """Return targets that the loss accepts; the data set alone has the real ones."""
    with torch.no_grad(), frozen_statistics(trial.module):
        output = runner.returned(runner.run(0, trial.inputs))
        try:
            runner.loss(output, targets)
        except (ValueError, RuntimeError, IndexError):
            return torch.zeros_like(main(output))
    return targets


def work_of(lap: Lap, accumulating: Lap | None = None, *, kept: int = 0, shares: tuple[int | None, ...] = ()) -> Work:
    """Return the work of a lap; `accumulating` is one that adds to parameter gradients, where that differs."""
    return Work(
        flops=lap.flops,
        traffic_bytes=lap.traffic_bytes,
        kernels=lap.kernels,
        working_bytes=lap.working_bytes,
        accumulating_bytes=(accumulating or lap).working_bytes,
        kept_bytes=kept,
        shares=shares,
    )


def _shares(results: Streams, arguments: Streams) -> tuple[int | None, ...]:
    """Return the place, among arguments and results, of the first tensor in whose memory each result lies; else None."""
    place = {id(storage): index for index, storage in enumerate(storages(arguments))}
    first: dict[object, int] = {}
    shares = []
    for index, (result, storage) in enumerate(zip(results, storages(results), strict=True), len(arguments)):
        # Parts of one storage are tensors of their own, which take its bytes together.
        same = first.setdefault((id(storage), result.storage_offset(), result.shape), index)
        shares.append(place.get(id(storage), same if same < index else None))
    return tuple(shares)


def _own_bytes(results: Streams, shares: tuple[int | None, ...]) -> int:
    return distinct_bytes(stream for stream, share in zip(results, shares, strict=True) if share is None)

"""The operations of the executor's segment runners on one node, run and counted.

Decision: the runners themselves run, on tensors without values. So the planner's numbers follow the executor, and no
second description of its operations has to be kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from attrs import evolve, frozen
from torch import Tensor, nn

from petra_graph.blocks import Block, Head, Reversible, Streams, frozen_statistics
from petra_graph.blocks.grid import grid
from petra_graph.executor.numerics import NumericsContext, largest_magnitude
from petra_graph.executor.reconstruct_recompute_stash import (
    HeadRunner,
    Recompute,
    Reconstruct,
    SegmentRunner,
    SplitRunner,
    StashGraph,
)
from petra_graph.executor.stage_parameters import Parameters
from petra_graph.kinds.loss import Loss
from petra_graph.measure.tally import Lap, Tally, distinct_bytes, storages
from petra_graph.program.node_costs import Operation, Work

T = TypeVar("T", bound=SegmentRunner)


@frozen(kw_only=True, slots=False)
class WithoutValues(NumericsContext):
    """Numerics that read no value; without autocast on the meta device, whose tensors autocast does not know."""

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Set the arithmetic of a device with values."""
        with grid(self.grid_bits) if self.device.type == "meta" else super().arithmetic():
            yield

    def check_range(self, name: str, streams: Streams) -> None:
        """Compute the magnitude that a run compares with the range."""
        largest_magnitude(streams)


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


def count_operations(
    trial: NodeTrial, loss: Loss, targets: Tensor, *, split: bool = False
) -> tuple[Streams, Mapping[Operation, Work]]:
    """Return a node's outputs, and the work of all operations that a node of its class may meet in training.

    Args:
        targets: the head's, if the loss accepts them; else targets are like the head's output.
        split: whether it may meet the parts of a split backward.
    """
    if isinstance(trial.module, Head):
        return (), _head(trial, loss, targets, split=split)
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
        if split:
            work.update(_reconstructed(trial, runner, outputs, gradients))
    if split:
        work.update(_rerun(trial, gradients))
    return outputs, work


def _recompute(trial: NodeTrial, gradients: Streams) -> Work:
    runner = trial.runner(Recompute)

    def run() -> Streams:
        runner.buffer.put(0, trial.inputs)
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


def _head(trial: NodeTrial, loss: Loss, targets: Tensor, *, split: bool) -> Mapping[Operation, Work]:
    runner = trial.runner(HeadRunner, loss=loss)
    target = _accepted(runner, trial, targets)

    def begin(inputs: Streams) -> Streams:
        runner.forward(0, inputs, target)
        runner.reconstruct(0, None)
        return ()

    def run() -> Streams:
        runner.forward_backward(0, trial.inputs, target)
        return runner.pending.take(0).gradients

    whole: Mapping[Operation, Work] = {"forward_backward": _differentiated(trial, run, trial.inputs)}
    if not split:
        return whole
    parts = _in_parts(trial, runner, begin, trial.inputs, ())
    return {**whole, **_named(_RERUN, [*parts, *_in_parts(trial, runner, begin, trial.inputs, (), at_once=True)])}


_Parts = tuple[Operation, Operation, Operation, Operation]
_RECONSTRUCTED: _Parts = ("reconstruct", "reconstruct_inputs", "reconstruct_parameters", "reconstruct_gradients")
_RERUN: _Parts = ("rerun", "rerun_inputs", "rerun_parameters", "rerun_gradients")


def _named(names: _Parts, works: Sequence[Work]) -> Mapping[Operation, Work]:
    """Return works by name; B may be missing."""
    return dict(zip(names, works, strict=False))


def _reconstructed(
    trial: NodeTrial, runner: Reconstruct, outputs: Streams, gradients: Streams
) -> Mapping[Operation, Work]:
    def begin(outputs: Streams) -> Streams:
        return runner.reconstruct(0, outputs)

    parts = [
        part
        for at_once in (False, True)
        for part in _in_parts(trial, runner, begin, outputs, gradients, from_outputs=True, at_once=at_once)
    ]
    return _named(_RECONSTRUCTED, parts)


class _Rerun(Recompute):
    """A runner whose output can be taken, as the next node of its segment takes it."""

    made: Streams = ()

    def run(self, micro_batch: int | None, streams: Streams, parameters: Parameters | None = None) -> Streams:
        self.made = super().run(micro_batch, streams, parameters)
        return self.made


def _rerun(trial: NodeTrial, gradients: Streams) -> Mapping[Operation, Work]:
    runner = trial.runner(_Rerun)

    def begin(inputs: Streams) -> Streams:
        runner.buffer.put(0, inputs)
        runner.reconstruct(0, None)
        made, runner.made = runner.made, ()
        return made

    return _named(_RERUN, _in_parts(trial, runner, begin, trial.inputs, gradients))


def _in_parts(
    trial: NodeTrial,
    runner: SplitRunner,
    begin: Callable[[Streams], Streams],
    arguments_like: Streams,
    gradients_like: Streams,
    *,
    from_outputs: bool = False,
    at_once: bool = False,
) -> Sequence[Work]:
    """Return the work of R, I and W, run twice as in `_differentiated`; in the second run as before another node.

    What is kept behind a part is what lives once the runner alone holds anything, so all tensors are made here.

    Args:
        runner: of the node.
        begin: does R, and returns its results.
        arguments_like: tensors like its arguments.
        gradients_like: tensors like the arguments of I.
        from_outputs: whether R's arguments are the node's outputs, and its results the inputs; else it is the reverse.
        at_once: return the work of B alone, which does I and W.
    """
    rounds: list[tuple[Work, Lap, Work, Lap]] = []
    inner = 0
    trial.drop_gradients()
    with Tally() as tally:
        for inside in (False, not at_once):
            before = tally.live
            arguments = tuple(map(torch.zeros_like, arguments_like))
            tally.lap()
            results = begin(arguments)
            lap, shares = tally.lap(), _shares(results, arguments)
            taken, made = _references(arguments), _references(results)
            whole = [one.grad_fn for one in results] if inside else []
            del arguments, results
            holds, kept = _held([*taken, *made], tally.live - before)
            reopened = work_of(lap, kept=kept, shares=shares, holds=holds)
            gradients = tuple(map(torch.zeros_like, gradients_like))
            tally.lap()
            found = runner.input_gradient(gradients, alone=not at_once)
            lap = tally.lap()
            outputs, inputs = (taken, made) if from_outputs else (made, taken)
            known = [*outputs, *_references(gradients), *inputs]
            shares = _places(found, [one() for one in known])
            known += _references(found)
            del gradients, found
            holds, kept = _held(known, tally.live - before)
            if inside:
                inner = kept
            whole.clear()
            tally.lap()
            runner.parameter_gradient(0)
            rounds.append((reopened, lap, work_of(lap, kept=kept, shares=shares, holds=holds), tally.lap()))
    trial.drop_gradients()
    (reopened, first, of_inputs, allocating), (_, second, _, adding) = rounds
    if at_once:
        return [work_of(first, second, shares=of_inputs.shares)]
    return reopened, evolve(of_inputs, inner_bytes=inner), work_of(allocating, adding)


_Reference = weakref.ref[torch.UntypedStorage]


def _references(streams: Streams) -> list[_Reference]:
    return [weakref.ref(storage) for storage in storages(streams)]


def _held(known: Sequence[_Reference], live: int) -> tuple[tuple[int, ...], int]:
    """Return which of these storages are alive, and how many of the `live` bytes are in none of them."""
    alive = {index: storage for index, one in enumerate(known) if (storage := one()) is not None}
    distinct = {id(storage): storage.nbytes() for storage in alive.values()}
    return tuple(alive), live - sum(distinct.values())


def _accepted(runner: HeadRunner, trial: NodeTrial, targets: Tensor) -> Tensor:
    """Return targets that the loss accepts; the data set alone has the real ones."""
    with torch.no_grad(), frozen_statistics(trial.module):
        (output,) = runner.run(0, trial.inputs)
        try:
            runner.loss(output, targets)
        except (ValueError, RuntimeError, IndexError):
            return torch.zeros_like(output)
    return targets


def work_of(
    lap: Lap,
    accumulating: Lap | None = None,
    *,
    kept: int = 0,
    shares: tuple[int | None, ...] = (),
    holds: tuple[int, ...] = (),
) -> Work:
    """Return the work of a lap; `accumulating` is one that adds to parameter gradients, where that differs."""
    return Work(
        flops=lap.flops,
        traffic_bytes=lap.traffic_bytes,
        kernels=lap.kernels,
        working_bytes=lap.working_bytes,
        accumulating_bytes=(accumulating or lap).working_bytes,
        kept_bytes=kept,
        shares=shares,
        holds=holds,
    )


def _shares(results: Streams, arguments: Streams) -> tuple[int | None, ...]:
    """Return the place, among arguments and results, of the first tensor in whose memory each result lies; else None."""
    return _places(results, storages(arguments))


def _places(results: Streams, arguments: Sequence[torch.UntypedStorage | None]) -> tuple[int | None, ...]:
    """As `_shares`; None: an argument that is no more."""
    place = {id(storage): index for index, storage in enumerate(arguments) if storage is not None}
    first: dict[object, int] = {}
    shares = []
    for index, (result, storage) in enumerate(zip(results, storages(results), strict=True), len(arguments)):
        # Parts of one storage are tensors of their own, which take its bytes together.
        same = first.setdefault((id(storage), result.storage_offset(), result.shape), index)
        shares.append(place.get(id(storage), same if same < index else None))
    return tuple(shares)


def _own_bytes(results: Streams, shares: tuple[int | None, ...]) -> int:
    return distinct_bytes(stream for stream, share in zip(results, shares, strict=True) if share is None)

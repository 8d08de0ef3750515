"""What the executor's runners do with one node, run and counted.

Decision: the runners themselves run, on tensors without values. So the planner's numbers follow whatever the executor
does, and nobody has to keep a second description of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from attrs import frozen
from torch import Tensor, nn

from petra_graph.blocks import Block, Head, Reversible, Streams, frozen_statistics
from petra_graph.blocks.grid import grid
from petra_graph.executor.numerics import NumericsContext, largest_magnitude
from petra_graph.executor.segment_runners import HeadRunner, Recompute, Reconstruct, StashGraph
from petra_graph.measure.live_bytes import storages
from petra_graph.measure.tally import Lap, Tally
from petra_graph.program.costs import Operation, Work
from petra_graph.registry.contracts import Loss


@frozen(kw_only=True, slots=False)
class WithoutValues(NumericsContext):
    """An evaluation that looks at no value; on the meta device, whose tensors autocast does not know, without it."""

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Run blocks as on a device with values."""
        if self.device.type != "meta":
            with super().arithmetic():
                yield
            return
        with grid(self.grid_bits):
            yield

    def check_range(self, name: str, streams: Streams, bits: int) -> None:
        """Compute what would be compared."""
        largest_magnitude(streams)


def faked(module: Block) -> Block:
    """Put a module of the meta device on the CPU of the fake tensor mode that is on; tensors that are no buffers stay."""
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
class Subject:
    """One node, built and placed, and what it reads."""

    name: str
    module: Block
    numerics: NumericsContext
    reads_samples: bool
    inputs: Streams

    @property
    def modules(self) -> Mapping[str, Block]:
        """As runners take them."""
        return {self.name: self.module}

    def forget(self) -> None:
        """Drop the gradients of parameters."""
        self.module.zero_grad(set_to_none=True)


@frozen(kw_only=True)
class Operated:
    """A node's operations and what it returned."""

    outputs: Streams
    work: Mapping[Operation, Work]


def operate(subject: Subject, loss: Loss, targets: Sequence[Tensor]) -> Operated:
    """Run and count all operations that a node of its class may meet in training.

    Args:
        subject: the node.
        loss: what the head minimises.
        targets: for the head: the first that the loss accepts counts.
    """
    if isinstance(subject.module, Head):
        return _head(subject, loss, targets)
    runner = Reconstruct(subject.modules, subject.numerics, reads_samples=subject.reads_samples)
    with Tally() as tally:
        outputs = runner.run_without_graph(0, subject.inputs)
        forward = tally.lap()
    work: dict[Operation, Work] = {"forward": _work(forward, shares=_shares(outputs, subject.inputs))}
    # What comes is not what left: a message's gradient and activation have memory of their own.
    gradients = tuple(_like(stream) for stream in outputs)
    work["recompute"] = _recompute(subject, gradients)
    work["record"], work["replay"] = _recorded(subject, gradients)
    if isinstance(subject.module, Reversible) and len(outputs) == len(subject.inputs):
        again = tuple(_like(stream) for stream in outputs)
        work["invert"] = _invert(subject, subject.module, again)
        work["reverse"] = _reverse(subject, runner, again, gradients)
    return Operated(outputs=outputs, work=work)


def _recompute(subject: Subject, gradients: Streams) -> Work:
    runner = Recompute(subject.modules, subject.numerics, reads_samples=subject.reads_samples)

    def run() -> Streams:
        runner.buffer.put(0, subject.inputs)
        return runner.backward(0, None, gradients).gradients

    return _differentiated(subject, run, (*gradients, *subject.inputs))


def _reverse(subject: Subject, runner: Reconstruct, outputs: Streams, gradients: Streams) -> Work:
    def run() -> Streams:
        found = runner.backward(0, outputs, gradients)
        return (*found.inputs, *found.gradients)

    return _differentiated(subject, run, (*outputs, *gradients))


def _differentiated(subject: Subject, run: Callable[[], Streams], arguments: Streams) -> Work:
    """Run twice: gradients of parameters are made, then added to."""
    subject.forget()
    with Tally() as tally:
        results = run()
        anew = tally.lap()
        del results
        tally.lap()
        results = run()
        added = tally.lap()
    subject.forget()
    return _work(anew, added, shares=_shares(results, arguments))


def _recorded(subject: Subject, gradients: Streams) -> tuple[Work, Work]:
    runner = StashGraph(subject.modules, subject.numerics, reads_samples=subject.reads_samples)
    subject.forget()
    laps: list[tuple[Lap, Lap]] = []
    with Tally() as tally:
        for _ in range(2):
            outputs = runner.forward(0, subject.inputs)
            record = tally.lap()
            results = runner.backward(0, None, gradients).gradients
            laps.append((record, tally.lap()))
            shared = _shares(outputs, subject.inputs), _shares(results, (*gradients, *subject.inputs))
            own = _own_bytes(outputs, shared[0])
            del outputs, results
            tally.lap()
    subject.forget()
    (record, anew), (_, added) = laps
    return _work(record, kept=record.left_bytes - own, shares=shared[0]), _work(anew, added, shares=shared[1])


def _invert(subject: Subject, module: Reversible, outputs: Streams) -> Work:
    numerics = subject.numerics
    with Tally() as tally:
        with torch.no_grad(), frozen_statistics(module), numerics.node(subject.name, 0):
            inputs = numerics.canonicalize(module.inverse(*outputs))
        lap = tally.lap()
    return _work(lap, shares=_shares(inputs, outputs))


def _head(subject: Subject, loss: Loss, targets: Sequence[Tensor]) -> Operated:
    runner = HeadRunner(subject.modules, subject.numerics, reads_samples=subject.reads_samples, loss=loss)
    target = _accepted(runner, subject, targets)

    def run() -> Streams:
        runner.forward_backward(0, subject.inputs, target)
        return runner.pending.take(0).gradients

    return Operated(outputs=(), work={"forward_backward": _differentiated(subject, run, subject.inputs)})


def _accepted(runner: HeadRunner, subject: Subject, targets: Sequence[Tensor]) -> Tensor:
    """Return the first target that the loss takes; the data set alone knows what targets are."""
    with torch.no_grad(), frozen_statistics(subject.module):
        (output,) = runner.run(0, subject.inputs)
        tried = (*targets, torch.zeros_like(output))
        for target in tried[:-1]:
            try:
                runner.loss(output, target)
            except (ValueError, RuntimeError, IndexError):
                continue
            return target
    return tried[-1]


def _work(lap: Lap, accumulating: Lap | None = None, *, kept: int = 0, shares: tuple[int | None, ...]) -> Work:
    return Work(
        flops=lap.flops,
        traffic_bytes=lap.traffic_bytes,
        working_bytes=lap.working_bytes,
        accumulating_bytes=(accumulating or lap).working_bytes,
        kept_bytes=kept,
        shares=shares,
    )


def _shares(results: Streams, arguments: Streams) -> tuple[int | None, ...]:
    place = {id(storage): index for index, storage in enumerate(storages(arguments))}
    return tuple(place.get(id(storage)) for storage in storages(results))


def _own_bytes(results: Streams, shares: tuple[int | None, ...]) -> int:
    own = [stream for stream, share in zip(results, shares, strict=True) if share is None]
    return sum({id(storage): storage.nbytes() for storage in storages(own)}.values())


def _like(stream: Tensor) -> Tensor:
    """Return zeros in the stream's layout."""
    return torch.zeros_like(stream)

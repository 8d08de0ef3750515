"""A block under test, and micro-batches through it and back in the executor's own runners."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Literal, Self

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.blocks import (
    Block,
    Reversed,
    Reversible,
    Shape,
    Streams,
    backpropagate,
    frozen_statistics,
    leaf,
    random_key,
)
from petra_graph.blocks.randomness import fork_rng
from petra_graph.executor.numerics import NumericsContext, place
from petra_graph.executor.runners import BodyRunner, Recompute, Reconstruct
from petra_graph.plugins.kinds import BLOCK
from petra_graph.spec.model import PrecisionSpec
from petra_graph.testing.promises import AnyTrial

Compute = Literal["float64", "float32", "bfloat16"]
Draw = Callable[[Shape, torch.Generator], Tensor]
"""Draws an input stream of a given shape, the batch included."""
NODE, MICRO_BATCHES = "checked", 3
_NUDGE = 0.05


def normal(shape: Shape, generator: torch.Generator) -> Tensor:
    """Draw a stream from the standard normal distribution."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def tokens(vocabulary: int) -> Draw:
    """Return what draws streams of tokens, int64 from 0 to below a vocabulary."""
    return lambda shape, generator: torch.randint(vocabulary, shape, generator=generator)


@frozen(kw_only=True)
class Trial(AnyTrial):
    """A block with options, and the streams that it reads.

    Attributes:
        inputs: shapes of the streams, without the batch.
        batch: samples in a micro-batch.
        draw: draws each input stream, or one for each of them; `tokens(50_000)` for a block that reads tokens.
        memory_format: of streams, as `precision.memory_format`.
        compute: the precision of the run; None: in each, float64 where one is enough.
    """

    kind = BLOCK
    inputs: tuple[Shape, ...]
    batch: int = 4
    draw: Draw | Sequence[Draw] = normal
    memory_format: Literal["channels-last", "contiguous"] = "channels-last"
    compute: Compute | None = None

    @classmethod
    def of(cls, block: Any, inputs: Sequence[Sequence[int]], options: Any = None, **more: Any) -> Self:  # type: ignore[override]
        """Make a trial of a block's class, with its `options` table; errors as of `AnyTrial.of`."""
        return super().of(block, options, inputs=tuple(map(tuple, inputs)), **more)


@frozen(kw_only=True)
class RoundTrip:
    """A micro-batch through a block and back; `gradients` are those of the outputs."""

    m: int
    inputs: Streams
    outputs: Streams
    gradients: Streams
    back: Reversed


class Harness:
    """A trial's block as a stage on the CPU would have it: reversible ones keep nothing, others, and heads, their input.

    Its parameters are off their initial values: a last layer that starts at zero hides every mistake. Each `copy` has other parameters.
    """

    def __init__(self, trial: Trial, compute: Compute | None = None, copy: int = 0) -> None:
        self.compute: Compute = compute or trial.compute or "float64"
        self.trial = trial
        precision = PrecisionSpec(compute=self.compute, memory_format=trial.memory_format)
        self.numerics = NumericsContext(device=torch.device("cpu"), precision=precision, seed=trial.seed)
        self.dtype = self.numerics.dtype
        with fork_rng(random_key(trial.seed, NODE, "initial", copy), torch.device("cpu")):
            self.block: Block = place(trial.plugin.make(trial.inputs), self.numerics)
            with torch.no_grad():
                for parameter in self.block.parameters():
                    if parameter.is_floating_point():
                        parameter.add_(torch.randn_like(parameter), alpha=_NUDGE)
        kind: type[BodyRunner] = Reconstruct if isinstance(self.block, Reversible) else Recompute
        self.runner = kind({NODE: self.block}, self.numerics, reads_samples=False)

    def inputs(self, m: int) -> Streams:
        """Draw the input streams of micro-batch m."""
        generator = torch.Generator().manual_seed(random_key(self.trial.seed, "sample", m))
        shapes = [(self.trial.batch, *shape) for shape in self.trial.inputs]
        draws = [self.trial.draw] * len(shapes) if callable(self.trial.draw) else self.trial.draw
        return self.numerics.canonicalize([draw(shape, generator) for draw, shape in zip(draws, shapes, strict=True)])

    def peek(self, m: int, inputs: Streams) -> Streams:
        """Return the outputs of a training micro-batch, without a graph; the block's state stays as it is."""
        return self.runner.run_without_graph(m, inputs)

    def backward(self, m: int, outputs: Streams, gradients: Streams) -> Reversed:
        return self.runner.backward(m, outputs if isinstance(self.block, Reversible) else None, gradients)

    def round_trip(self, m: int, inputs: Streams, outputs: Streams | None = None) -> RoundTrip:
        """Bring a micro-batch back, after its forward where that is not done; gradients of parameters add up."""
        outputs = self.runner.forward(m, inputs) if outputs is None else outputs
        gradients = drawn_gradients(m, outputs)
        back = self.backward(m, outputs, gradients)
        return RoundTrip(m=m, inputs=inputs, outputs=outputs, gradients=gradients, back=back)

    def train(self) -> Iterator[RoundTrip]:
        """Run micro-batches as a stage of this depth does."""
        inputs = [self.inputs(m) for m in range(MICRO_BATCHES)]
        outputs = [self.runner.forward(m, streams) for m, streams in enumerate(inputs)]
        for m in range(MICRO_BATCHES):
            yield self.round_trip(m, inputs[m], outputs[m])

    def plain(self, trip: RoundTrip) -> tuple[Streams, Streams]:
        """Return the outputs and the inputs' gradients under plain autograd; parameters' gradients add up in `grad`."""
        own = tuple(map(leaf, trip.inputs))
        with self.numerics.node(NODE, trip.m):
            outputs = self.block(*own)
        return tuple(one.detach() for one in outputs), backpropagate(outputs, trip.gradients, own)

    @contextmanager
    def alone(self, m: int = 0) -> Iterator[None]:
        """Set the numerics of a training forward without a graph, for calls of the block itself."""
        with torch.no_grad(), frozen_statistics(self.block), self.numerics.node(NODE, m):
            yield

    def state(self) -> dict[str, Tensor]:
        """Return a copy of all parameters and buffers."""
        both = (*self.block.named_parameters(), *self.block.named_buffers())
        return {name: deepcopy(one.detach()) for name, one in both}

    def parameter_gradients(self) -> list[Tensor]:
        """Return the gradients of what is trained."""
        trained = (one for one in self.block.parameters() if one.requires_grad)
        return [torch.zeros_like(one) if one.grad is None else one.grad.to_dense() for one in trained]


def drawn_gradients(m: int, outputs: Streams) -> Streams:
    """Draw the loss's gradient with respect to each output of a micro-batch."""
    generator = torch.Generator().manual_seed(random_key("gradient", m))
    return tuple(torch.randn(one.shape, generator=generator, dtype=torch.float64).to(one.dtype) for one in outputs)

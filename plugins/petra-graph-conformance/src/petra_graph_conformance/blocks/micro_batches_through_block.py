"""Micro-batches through a block and back, in the segment runner that training would use.

    forwards of m = 0, 1, 2, then their backwards in the same order: as in a stage of depth 3

Decision: the executor's own runners check the promises, so that the kit accepts exactly the blocks that training accepts.
"""

# m micro-batch

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from typing import Any
from unittest.mock import patch

import torch
from attrs import frozen
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from petra_graph.blocks import (
    AdditiveCoupling,
    Block,
    Head,
    Reversed,
    Reversible,
    Streams,
    TwoFunctionCoupling,
    backpropagate,
    frozen_statistics,
    leaf,
)
from petra_graph.blocks.randomness import random_key
from petra_graph.executor.head import HeadRunner
from petra_graph.executor.runners import BodyRunner, Recompute, Reconstruct
from petra_graph.kinds.tensor_trees import Tree, leaves
from petra_graph.measure.tally import tensors
from petra_graph_conformance.blocks.block_trial import NODE, Compute, Trial, normal

MICRO_BATCHES = 3


@frozen(kw_only=True)
class RoundTrip:
    """One micro-batch through a block and back."""

    m: int
    inputs: Streams
    outputs: Streams
    gradients: Streams
    """The loss's gradient with respect to the outputs."""
    reverse: Reversed


class Harness:
    """A trial's block in its runner: reversible ones keep nothing, buffered ones their input, the head's loss is linear."""

    def __init__(self, trial: Trial, compute: Compute = "float64", *, copy: int = 0) -> None:
        """Build the block; each `copy` has other parameters."""
        self.numerics = trial.numerics(compute)
        self.block = trial.build(self.numerics, copy)
        self._trial = trial
        self._loss = _Projection()
        self._runner: BodyRunner | HeadRunner
        modules = {NODE: self.block}
        if isinstance(self.block, Head):
            self._runner = HeadRunner(modules, self.numerics, reads_samples=False, loss=self._loss)
        else:
            kind = Reconstruct if isinstance(self.block, Reversible) else Recompute
            self._runner = kind(modules, self.numerics, reads_samples=False)

    def inputs(self, m: int) -> Streams:
        return self._trial.streams(self.numerics, m)

    @contextmanager
    def without_graph(self, m: int = 0) -> Iterator[None]:
        """Set the numerics of a training forward without a graph, for calls of the block itself."""
        with torch.no_grad(), frozen_statistics(self.block), self.numerics.node(NODE, m):
            yield

    @cached_property
    def precision(self) -> torch.dtype:
        """The type whose rounding the block's values have: float32 where a part of it computes in that, or in a coarser type."""
        with self.without_graph(), _Types() as types:
            self.block(*self.inputs(0))
        return torch.float32 if types.coarse else self.numerics.dtype

    def draw(self, m: int, inputs: Streams) -> bytes:
        """Call the block with the key of a micro-batch, and return the state in which it leaves torch's generator."""
        with self.without_graph(m):
            self.block(*inputs)
            return torch.get_rng_state().numpy().tobytes()

    def draws(self, m: int) -> bool:
        """Whether the block draws random numbers on a micro-batch."""
        with self.without_graph(m):
            before = torch.get_rng_state()
            self.block(*self.inputs(m))
            return not torch.equal(before, torch.get_rng_state())

    def peek(self, m: int, inputs: Streams) -> Streams:
        """Return the outputs of a training micro-batch; the block's state stays as it is."""
        return self._runner.run_without_graph(m, inputs)

    def forward(self, m: int, inputs: Streams) -> Streams:
        """Run the forward of a training micro-batch."""
        if isinstance(self._runner, BodyRunner):
            return self._runner.forward(m, inputs)
        target = self._runner.returned(gradients_for(m, self.peek(m, inputs)))
        self._runner.forward_backward(m, inputs, target)
        return self._loss.outputs

    def backward(self, m: int, outputs: Streams, gradients: Streams) -> Reversed:
        """Run the backward of the oldest micro-batch in flight."""
        return self._runner.backward(m, outputs if isinstance(self.block, Reversible) else None, gradients)

    def train(self, count: int = MICRO_BATCHES) -> tuple[RoundTrip, ...]:
        """Run micro-batches as a stage of depth `count` does; parameter gradients add up."""
        inputs = [self.inputs(m) for m in range(count)]
        outputs = [self.forward(m, streams) for m, streams in enumerate(inputs)]
        trips = []
        for m in range(count):
            gradients = gradients_for(m, outputs[m])
            reverse = self.backward(m, outputs[m], gradients)
            trips.append(RoundTrip(m=m, inputs=inputs[m], outputs=outputs[m], gradients=gradients, reverse=reverse))
        return tuple(trips)

    def plain_pass(self, m: int, inputs: Streams, gradients: Streams) -> tuple[Streams, Streams]:
        """Run the block under plain autograd.

        Returns:
            the outputs, and the gradient of the inputs; parameter gradients are added to `grad`.
        """
        leaves = tuple(map(leaf, inputs))
        with self.numerics.node(NODE, m):
            outputs = self.block(*leaves)
        return tuple(stream.detach() for stream in outputs), backpropagate(outputs, gradients, leaves)

    def invert(self, m: int, outputs: Streams) -> Streams:
        """Run the block's inverse as a training micro-batch does."""
        assert isinstance(self._runner, Reconstruct)
        return self._runner.invert(m, outputs)


def gradients_for(m: int, outputs: Streams) -> Streams:
    """Draw the loss's gradient with respect to each output of a micro-batch."""
    generator = torch.Generator().manual_seed(random_key("gradient", m))
    return tuple(normal(tuple(stream.shape), generator).to(stream.dtype) for stream in outputs)


def residual_names(block: Block) -> tuple[str, ...]:
    """Return the names of a coupling's residual functions; () for other blocks."""
    if isinstance(block, AdditiveCoupling):
        return ("residual",)
    return ("f", "g") if isinstance(block, TwoFunctionCoupling) else ()


@contextmanager
def recorded(block: Block) -> Iterator[Mapping[str, list[Tensor]]]:
    """Record the values that a coupling's residual functions return, by name."""
    values: dict[str, list[Tensor]] = defaultdict(list)

    def call(name: str, method: Any, *arguments: Any) -> Any:
        value = method(*arguments)
        values[name].append(value)
        return value

    with ExitStack() as stack:
        for name in residual_names(block):
            stack.enter_context(patch.object(block, name, partial(call, name, getattr(block, name))))
        yield values


class _Types(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether an operation returns real numbers of fewer bits than float64."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.coarse = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation."""
        result = func(*args, **(kwargs or {}))
        real = [one.dtype for one in tensors(result) if one.is_floating_point()]
        self.coarse = self.coarse or any(dtype != torch.float64 for dtype in real)
        return result


class _Projection:
    """A loss whose gradient with respect to each output is its target."""

    outputs: Streams

    def __call__(self, output: Tree, target: Tree) -> Tensor:
        self.outputs = tuple(one.detach() for one in leaves(output))
        first, *others = ((one * beside).sum() for one, beside in zip(leaves(output), leaves(target), strict=True))
        return sum(others, first)

    def metrics(self, output: Tree, target: Tree) -> Mapping[str, Tensor]:
        return {}

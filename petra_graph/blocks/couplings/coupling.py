"""The base of all couplings: which of their streams are coupled, which only accompany them, and how a backward evaluates a function once.

A coupling changes some streams by functions of others. Streams beyond those that it couples are the *context* of its
functions: masks, positions, the output of an encoder. A block that reads them sets `streams` to the number of all,
takes them as further arguments of its functions, and passes them through unchanged. Floating-point context gets its
gradient, summed over all functions and consumers; integers and booleans have none.

    class Masked(TwoFunctionCoupling):
        streams = 3                        # x1, x2, mask

        def f(self, x, mask): return self.attention(x, mask)
        def g(self, x, mask): return self.mlp(x)

Context travels with the streams, in every message between stages. What is the same for all samples (a causal mask, the
positions 0, 1, ...) is better kept in a buffer of the block.

In the backward, couplings evaluate what their author wrote through `evaluate`: its value reconstructs, and its graph differentiates when the
gradient of the value is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.blocks.block_kinds import Reversible, Streams
from petra_graph.blocks.differentiation import backpropagate, leaf


class Coupling(Reversible):
    """A reversible block around functions that its author writes.

    Its backward evaluates each of `functions` once: the value reconstructs the input, the graph gives the gradient.
    """

    streams: ClassVar[int | None] = 2
    functions: ClassVar[tuple[str, ...]] = ("residual",)
    """Names of the methods that an author writes."""


@frozen
class Evaluation:
    """The values of a function, whose graph waits for `vjp`."""

    outputs: Streams
    """With their graph."""
    leaves: Streams

    @property
    def values(self) -> Streams:
        """The values without a graph."""
        return tuple(output.detach() for output in self.outputs)

    def vjp(self, gradients: Sequence[Tensor], passed: Sequence[Tensor] = ()) -> Streams:
        """Return the gradient with respect to each input; each owns its memory, so that others may be added in place.

        Args:
            gradients: of each output, of the streams' type.
            passed: for each input, the gradient of a stream that is the same before and after the step, to which this one is added; a stream of
                integers has none of its own, and keeps what was passed.
        """
        typed = gradients
        if self.outputs[0].dtype != gradients[0].dtype or len(gradients) > 1:
            typed = tuple(gradient.to(output.dtype) for gradient, output in zip(gradients, self.outputs, strict=True))
        found = owned(backpropagate(self.outputs, typed, self.leaves), gradients)
        if not passed:
            return found
        total: list[Tensor] = []
        for own, other in zip(found, passed, strict=True):
            total.append(own.add_(other) if own.is_floating_point() else other)
        return tuple(total)


def evaluate(function: Callable[..., Tensor | Streams], *inputs: Tensor) -> Evaluation:
    """Evaluate `function` at `inputs` with a graph."""
    leaves = tuple(map(leaf, inputs))
    with torch.enable_grad():
        outputs = function(*leaves)
    return Evaluation((outputs,) if isinstance(outputs, Tensor) else outputs, leaves)


def owned(results: Streams, gradients: Sequence[Tensor]) -> Streams:
    """Copy a result that shares its memory: a function that only views its input passes on the gradient itself.

    On the meta device addresses are all equal, so storages are compared as objects.
    """
    taken: dict[int, object] = {}
    for gradient in gradients:
        storage = gradient.untyped_storage()
        taken[id(storage)] = storage
    owned = []
    for result in results:
        storage = result.untyped_storage()
        owned.append(result.clone() if id(storage) in taken else result)
        taken[id(storage)] = storage
    return tuple(owned)


def residual_value(function: Callable[..., Tensor], x: Tensor, *context: Tensor) -> Tensor:
    """Return function(x, *context), which has x's shape.

    Raises:
        TypeError: it is not a tensor.
        ValueError: it has another shape; one that broadcasts can be added, and not differentiated.
    """
    value = function(x, *context)
    if not isinstance(value, Tensor) or value.shape != x.shape:
        raise _fault(function, value, x)
    return value


class WrongResult(TypeError, ValueError):
    """What the function of a coupling returned cannot be added to its stream."""


def _fault(function: Callable[..., Any], value: Any, x: Tensor) -> WrongResult:
    name = getattr(function, "__name__", "the function")
    if not isinstance(value, Tensor):
        return WrongResult(f"{name} must return a tensor (got {type(value).__name__})")
    return WrongResult(f"{name} must return a tensor of its input's shape, {list(x.shape)} (got {list(value.shape)})")


def scaled(stream: Tensor, by: float | Tensor) -> Tensor:
    """Multiply, unless by 1."""
    return stream if is_number(by, 1.0) else stream * by


def is_number(coefficient: float | Tensor, value: float) -> bool:
    """Whether a coefficient is this number, and not a tensor."""
    return not isinstance(coefficient, Tensor) and coefficient == value

"""One evaluation of a function in the backward: its value reconstructs, its graph differentiates.

Couplings evaluate what their author wrote through `evaluate`, take the value first, and the vector-Jacobian product
when the gradient of the value is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.blocks.block_kinds import Streams, backpropagate, hookable, leaf
from petra_graph.blocks.grid import grid_bits, rounded


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

    def vjp(self, *gradients: Tensor) -> Streams:
        """Return the gradient with respect to each input; each owns its memory, so that others may be added in place.

        Args:
            gradients: of each output, of the streams' type.
        """
        typed = gradients
        if self.outputs[0].dtype != gradients[0].dtype or len(gradients) > 1:
            typed = tuple(gradient.to(output.dtype) for gradient, output in zip(gradients, self.outputs, strict=True))
        return owned(backpropagate(self.outputs, typed, self.leaves), gradients)


def evaluate(function: Callable[..., Tensor | Streams], *inputs: Tensor) -> Evaluation:
    """Evaluate `function` at `inputs` with a graph."""
    leaves = tuple(map(leaf, inputs))
    with torch.enable_grad():
        outputs = function(*hookable(leaves))
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


def _fault(function: Callable[..., Any], value: Any, x: Tensor) -> TypeError | ValueError:
    name = getattr(function, "__name__", "the function")
    if not isinstance(value, Tensor):
        return TypeError(f"{name} must return a tensor (got {type(value).__name__})")
    shape, got = list(x.shape), list(value.shape)
    return ValueError(f"{name} must return a tensor of its input's shape, {shape} (got {got})")


def added(function: Callable[..., Tensor], x: Tensor, *context: Tensor) -> Tensor:
    """Return function(x, *context) as it is added to a stream: on the grid in force."""
    value = function(x, *context)
    if not isinstance(value, Tensor) or value.shape != x.shape:
        raise _fault(function, value, x)
    bits = grid_bits()
    return value if bits is None else rounded(value.to(x.dtype), bits)


def sums(found: Sequence[Tensor], passed: Sequence[Tensor]) -> Streams:
    """Add the gradients `passed` through to those `found` in place; integer streams have no gradient of their own, and keep what was passed."""
    return tuple(
        one.add_(other) if one.is_floating_point() else other for one, other in zip(found, passed, strict=True)
    )


def scaled(stream: Tensor, by: float | Tensor) -> Tensor:
    """Multiply, unless by 1."""
    return stream if is_number(by, 1.0) else stream * by


def is_number(coefficient: float | Tensor, value: float) -> bool:
    """Whether a coefficient is this number, and not a tensor."""
    return not isinstance(coefficient, Tensor) and coefficient == value

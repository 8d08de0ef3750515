"""The vector-Jacobian product of every backward.

Parameter gradients are added to `grad` by autograd itself, which keeps the first of a window without a copy and adds
the others in place; input gradients are returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def leaf(stream: Tensor) -> Tensor:
    """Cut `stream` from its graph; floating-point streams get a gradient, others (images, tokens) cannot have one."""
    return stream.detach().requires_grad_(stream.is_floating_point())


def backpropagate(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor], inputs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Differentiate `outputs`, weighted by `gradients`, with respect to the leaves `inputs` and all parameters.

    Returns:
        The gradient of each input that is floating point, zeros where nothing depends on it; for others an empty
        tensor, which has no meaning and is never read.
    """
    reached = [(output, gradient) for output, gradient in zip(outputs, gradients, strict=True) if output.requires_grad]
    if reached:
        # Autocast belongs to the evaluation: float32 computations of a block are differentiated in float32.
        with _without_autocast(reached[0][0].device.type):
            torch.autograd.backward([output for output, _ in reached], [gradient for _, gradient in reached])
    return tuple(_gradient(stream) for stream in inputs)


def _without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Switch autocast off on a type of device; the meta device has none."""
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def _gradient(stream: Tensor) -> Tensor:
    if not stream.is_floating_point():
        return stream.new_empty(0)
    gradient = stream.grad
    return torch.zeros_like(stream) if gradient is None else gradient

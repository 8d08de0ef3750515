"""Vector-Jacobian products: every backward of a block is one of them, or several (PETRA equations (2) and (3)).

Parameter gradients are added to `grad` by autograd itself, which keeps the first of a window without a copy and adds the others in place;
input gradients are returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

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
        The gradient of each input that asks for one, zeros where nothing depends on it; for others an empty tensor,
        which has no meaning and is never read.
    """
    reached: list[Tensor] = []
    weights: list[Tensor] = []
    for output, gradient in zip(outputs, gradients, strict=True):
        if output.requires_grad:
            reached.append(output)
            weights.append(gradient)
    if reached:
        kind = reached[0].device.type
        if _autocasts(kind) and torch.is_autocast_enabled(kind):
            # Autocast belongs to the evaluation: float32 computations of a block are differentiated in float32.
            with torch.autocast(kind, enabled=False):
                return backpropagate(reached, weights, inputs)
        _run_backward(tuple(reached), tuple(weights), False, False, (), allow_unreachable=True, accumulate_grad=True)
    gradients = []
    for stream in inputs:
        found = stream.grad
        if found is None:
            found = torch.zeros_like(stream) if stream.requires_grad else stream.new_empty(0)
        gradients.append(found)
    return tuple(gradients)


# What `torch.autograd.backward` calls, for as long as it takes to compare shapes in Python that the engine compares again;
# Megatron-LM's pipeline calls it, too.
_run_backward = torch.autograd.Variable._execution_engine.run_backward  # noqa: SLF001
_autocasts = cache(torch.amp.is_autocast_available)

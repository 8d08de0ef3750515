"""Autograd's gradients of a block are its derivatives: a custom backward, or a hook, may leave out a term.

All other promises of gradients compare with plain autograd, which a wrong `backward` makes wrong as well.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from petra_graph.blocks import Streams, frozen_statistics
from petra_graph_conformance.blocks.block_trial import NODE, Trial
from petra_graph_conformance.blocks.micro_batches_through_block import Harness, gradients_for
from petra_graph_conformance.broken_promise import BrokenPromise

_STEP, _COARSE_STEP = 1e-6, 1e-4
"""How far values move, in float64, and where a part of the block is in float32."""
_ALLOWED = 0.02
"""The relative error that curvature, rounding and a ReLU at its kink explain."""


def check_derivative(trial: Trial) -> None:
    """Gradients are derivatives: along one direction of the streams, and one of the parameters, they agree with finite differences.

    A straight-through estimate, a reversed gradient or a detached part may be meant.
    """
    harness = Harness(trial)
    block, step = harness.block, _STEP if harness.precision == torch.float64 else _COARSE_STEP
    streams = [stream.requires_grad_() for stream in harness.inputs(0) if stream.is_floating_point()]
    inputs = _with(harness.inputs(0), streams)
    parameters = [one for one in block.parameters() if one.requires_grad]
    gradients: Streams = ()

    def value() -> Tensor:
        nonlocal gradients
        with frozen_statistics(block), harness.numerics.node(NODE, 0):
            outputs = [one for one in block(*inputs) if one.is_floating_point()]
        gradients = gradients or gradients_for(0, tuple(outputs))
        return torch.stack([(one * beside).sum() for one, beside in zip(outputs, gradients, strict=True)]).sum()

    for noun, moved in (("streams", streams), ("parameters", parameters)):
        if not moved:
            continue
        found = torch.autograd.grad(value(), moved, allow_unused=True, materialize_grads=True)
        slopes = [one.to_dense() if one.is_sparse else one for one in found]
        generator = torch.Generator().manual_seed(trial.seed)
        direction = [torch.randn(one.shape, generator=generator, dtype=torch.float64).to(one.dtype) for one in moved]
        along = sum(float((one * beside).sum()) for one, beside in zip(slopes, direction, strict=True))
        sides = []
        with torch.no_grad():
            kept = [one.clone() for one in moved]
            for sign in (1, -1):
                for one, was, beside in zip(moved, kept, direction, strict=True):
                    one.copy_(was + sign * step * beside)
                sides.append(float(value()))
            for one, was in zip(moved, kept, strict=True):
                one.copy_(was)
        difference = (sides[0] - sides[1]) / (2 * step)
        size = math.hypot(*(float(one.norm()) for one in slopes), difference)
        if abs(along - difference) > _ALLOWED * size:  # not a number compares as false
            message = (
                f"along one direction of the {noun}, gradients say {along:.4g} and finite differences {difference:.4g}"
            )
            remedy = "see every `backward` of its own and its hooks, and what is detached or rounded"
            raise BrokenPromise("derivative", message, remedy)


def _with(inputs: Streams, streams: list[Tensor]) -> Streams:
    """Return input streams, those of real numbers replaced in their order."""
    real = iter(streams)
    return tuple(next(real) if stream.is_floating_point() else stream for stream in inputs)

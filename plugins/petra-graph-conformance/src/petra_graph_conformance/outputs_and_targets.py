"""Drawn outputs of a head and targets of them, with which losses and metrics are tried where no data set gives any.

Every second sample is predicted rightly or nearly so: a count of right predictions is not 0 in every batch, where a mean would be its own sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from petra_graph.kinds.tensor_trees import Tree

Shape = tuple[int, ...]
"""Of one sample's output."""
DrawTargets = Callable[[Any, torch.Generator], Tree]
"""Draws the targets [n, ...] of outputs [n, ...]; either may be several."""
_RIGHT = 6.0
"""The output of a right class, above all that are drawn."""
NEAR = 0.01
"""How far targets are from outputs that predict them well."""


def classes_of(output: Tensor, generator: torch.Generator) -> Tensor:
    """Draw class indices, int64 [n], or [n, ...] for outputs [n, classes, ...]; every second sample's are predicted.

    For one output, the classes are 0 and 1: it is the logit of class 1.
    """
    shape, classes = (output.shape[0], *output.shape[2:]), output.shape[1]
    drawn = torch.randint(max(classes, 2), shape, generator=generator)
    drawn[::2] = output[::2].argmax(1) if classes > 1 else output[::2, 0] > 0
    return drawn


def last_classes_of(output: Tensor, generator: torch.Generator) -> Tensor:
    """Draw class indices [n, ...] for outputs [n, ..., classes], as `classes_of`."""
    return classes_of(output.movedim(-1, 1), generator)


def values_like(output: Tensor, generator: torch.Generator) -> Tensor:
    """Draw targets of the output's shape, standard normal; every second sample's are near its outputs."""
    drawn = torch.randn(output.shape, generator=generator)
    drawn[::2] = output[::2].to(drawn.dtype) + NEAR * drawn[::2]
    return drawn


def numbers_of(output: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a value for each output [n, 1, ...]: [n, ...], as `values_like`."""
    return values_like(output.squeeze(1), generator)


def binary_like(output: Tensor, generator: torch.Generator) -> Tensor:
    """Draw 0 and 1 of the output's shape, as floats; every second sample's are those of positive outputs."""
    return (values_like(output, generator) > 0).float()


def shape_of(sizes: Any) -> Any:
    """Return a shape, or those of several outputs in their tuple or dictionary."""
    if isinstance(sizes, Mapping):
        return {key: tuple(one) for key, one in sizes.items()}
    return tuple(one if isinstance(one, int) else tuple(one) for one in sizes)


def of_shapes(shape: Any, draw: Callable[[Shape], Tensor]) -> Tree:
    """Return what is drawn for a shape, or for each of several."""
    if isinstance(shape, Mapping):
        return {key: draw(one) for key, one in shape.items()}
    several = any(isinstance(one, tuple) for one in shape)
    return tuple(map(draw, shape)) if several else draw(shape)


def outputs_for(shape: Shape, targets: Tensor) -> Tensor:
    """Draw outputs, those of every second sample right or near, so that metrics that count them are not 0 throughout."""
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(len(targets), *shape, generator=generator)
    if targets.is_floating_point() and targets.shape == output.shape:
        output[::2] = targets[::2].float() + NEAR * output[::2]
    elif targets.dtype == torch.int64 and targets.shape == (len(output), *output.shape[2:]):
        right = targets[::2].unsqueeze(1)
        if int(right.max()) < output.shape[1]:
            output[::2] = output[::2].scatter(1, right, _RIGHT)
    return output.requires_grad_()


TARGETS: Mapping[str, DrawTargets] = {
    "classes": classes_of,
    "last-classes": last_classes_of,
    "values": values_like,
    "numbers": numbers_of,
    "binary": binary_like,
}
"""By the name that `--targets` gives."""
OUTPUT_SETTINGS = {"output": "5x8x6", "targets": "classes"}
"""What `petra-graph check` may be told of outputs and targets."""
_LIKELY: Sequence[tuple[Shape, DrawTargets]] = (
    ((10,), classes_of),
    ((10,), values_like),
    ((10, 6), classes_of),
    ((5, 8, 6), classes_of),
    ((6, 10), last_classes_of),
    ((1,), values_like),
    ((1,), numbers_of),
    ((1,), classes_of),
    ((2,), classes_of),
    ((3,), classes_of),
    ((10,), binary_like),
    ((1,), binary_like),
    ((1, 8, 6), binary_like),
    ((3, 8, 6), values_like),
)
"""Classes and values of a sample, a class for each token or pixel; then single values, few classes, 0 and 1."""


def likely_outputs(given: Mapping[str, Any]) -> Sequence[tuple[Shape, DrawTargets]]:
    """Return likely shapes of a sample's output with targets of them, of the given ones where there are any."""
    output, targets = given.get("output"), given.get("targets")
    if output is not None:
        return [(output, draw) for draw in ([targets] if targets else TARGETS.values())]
    return [pair for pair in _LIKELY if targets in {None, pair[1]}]

"""Vector-Jacobian products: every backward of a block is one of them, or several (PETRA equations (2) and (3)).

Parameter gradients are added to `grad` by autograd itself, which keeps the first of a window without a copy and adds the others in place;
input gradients are returned.

Running statistics follow each micro-batch once, in the evaluation whose graph is differentiated. A training forward without a graph normalises
with batch statistics, as always, but must leave the running ones alone; otherwise each micro-batch would count twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn


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
    # Of a single sample, a parameter's gradient may be a view of those that go on to other stages, and a step changes it in place.
    alone = bool(inputs) and inputs[0].shape[:1] == (1,)
    pairs = [pair for pair in zip(outputs, gradients, strict=True) if pair[0].requires_grad]
    if pairs:
        reached, weights = zip(*pairs, strict=True)
        kind = reached[0].device.type
        if _autocasts(kind) and torch.is_autocast_enabled(kind):
            # Autocast belongs to the evaluation: float32 computations of a block are differentiated in float32.
            with torch.autocast(kind, enabled=False):
                return backpropagate(reached, weights, inputs)
        if alone:
            weights = tuple(map(Tensor.clone, weights))
        _run_backward(reached, weights, False, False, (), allow_unreachable=True, accumulate_grad=True)
    found = []
    for stream in inputs:
        gradient = stream.grad
        if gradient is None:
            gradient = torch.zeros_like(stream) if stream.requires_grad else stream.new_empty(0)
        found.append(gradient.clone() if alone else gradient)
    return tuple(found)


# What `torch.autograd.backward` calls, for as long as it takes to compare shapes in Python that the engine compares again;
# Megatron-LM's pipeline calls it, too.
_run_backward = torch.autograd.Variable._execution_engine.run_backward  # noqa: SLF001
_autocasts = cache(torch.amp.is_autocast_available)


class without_graph:  # noqa: N801  it is used like `torch.no_grad()`
    """What `torch.no_grad` is as a context, for a fifth of its time, which is as long as a small layer takes."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)  # noqa: SLF001  as `torch.no_grad` does

    def __exit__(self, *_: object) -> None:
        torch._C._set_grad_enabled(self._before)  # noqa: SLF001


class frozen_statistics:  # noqa: N801  it is used like a function: `with frozen_statistics(block):`
    """A context in which modules leave their running statistics alone; it may be entered again and again, also within itself.

    The context reaches every submodule with torch's own switch, `track_running_stats`: with the switch off in training mode,
    batch normalisation uses the same batch statistics and writes nothing. A block with statistics of its own gives
    the submodule that holds them this attribute, and updates them only while it is true.

    Instance normalisation writes to its buffers whatever the switch says; in training mode, where it does not read
    them, the context takes them away instead.
    """

    def __init__(self, *modules: nn.Module) -> None:
        self.places: list[tuple[nn.Module, dict[str, Any], str, bool | None]] = []
        """What is changed: a module, one of its dictionaries (`nn.Module.__setattr__` takes long), a name there, its value inside."""
        for part in (part for module in modules for part in module.modules()):
            if isinstance(part, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d):
                self.places += ((part, part._buffers, name, None) for name in ("running_mean", "running_var"))  # noqa: SLF001
            elif hasattr(part, "track_running_stats"):
                vars(part).setdefault(
                    "track_running_stats", part.track_running_stats
                )  # it may be an attribute of the class
                self.places.append((part, vars(part), "track_running_stats", False))
        self._entered: list[list[tuple[dict[str, Any], str, Any]]] = []

    def __enter__(self) -> None:
        before = []
        for part, table, name, off in self.places:
            if off is False or part.training:
                before.append((table, name, table[name]))
                table[name] = off
        self._entered.append(before)

    def __exit__(self, *_: object) -> None:
        for table, name, value in self._entered.pop():
            table[name] = value

"""Any class of `torch.nn.Module` as a class of buffered blocks: `block = "my_file:MyModule"`, whose options are the module's own parameters."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache
from typing import Any

from torch import Tensor, nn

from petra_graph.blocks.block_kinds import Buffered, Shape, Streams


@cache
def block_of(module: type[nn.Module]) -> type[Buffered]:
    """Return the class of blocks whose forward is that of a module."""

    class Made(Buffered):
        draws = False

        def __init__(self, inputs: Sequence[Shape], **options: Any) -> None:
            super().__init__(inputs)
            self.module = module(**options)

        def forward(self, *streams: Tensor) -> Streams:
            return as_outputs(self.module(*streams), module.__qualname__)

    options = [
        one if one.kind is one.VAR_KEYWORD else one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for one in inspect.signature(module).parameters.values()
        if one.kind is not one.VAR_POSITIONAL
    ]
    inputs = inspect.Parameter("inputs", inspect.Parameter.POSITIONAL_ONLY)
    Made.__signature__ = inspect.Signature([inputs, *options])  # type: ignore[attr-defined]
    Made.__doc__, Made.__module__, Made.__qualname__ = module.__doc__, module.__module__, module.__qualname__
    return Made


def as_outputs(returned: Any, by: str) -> Streams:
    """Return what a module returned as streams: a tensor, or those in a tuple or list.

    Raises:
        TypeError: something is no tensor.
    """
    outputs = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    if not all(isinstance(one, Tensor) for one in outputs):
        kinds = ", ".join(type(one).__name__ for one in outputs)
        hint = "in a module of your own, return the tensors [n, ...] that the next node reads, as in self.lstm(x)[0]"
        raise TypeError(f"{by} returned {kinds}, and streams are tensors: {hint}")
    return outputs

"""Any `torch.nn.Module` as a block: `block = "my_file:MyModule"`, or a function that makes one; its parameters are the options.

Decision: a node makes its module by calling a class or a function, and never takes one that is there already. Its parameters are
then drawn under the key of the node, as those of any block: they follow from the seed and the node's name, and two nodes share none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten  # the structures that torch.export knows

from petra_graph.blocks.block_kinds import Block, Buffered, Head, Shape, Streams


class StructuredHead(Head):
    """A head whose `value` is what the loss is called with: a tensor, or tensors in tuples, lists and dictionaries."""

    draws = False
    of: str
    """What returns it, for messages."""
    value: Callable[..., Any]

    def __init__(self, inputs: Sequence[Shape], **options: Any) -> None:
        super().__init__(inputs, **options)
        self.structures: dict[bool, Any] = {}

    def forward(self, *streams: Tensor) -> Streams:
        """Return the tensors of the value."""
        returned = self.value(*streams)
        if isinstance(returned, Tensor):
            self.structures[self.training] = 0
            return (returned,)
        found, spec = tree_flatten(returned)
        tensors = tuple(one for one in found if isinstance(one, Tensor))
        others = dict.fromkeys(type(one).__name__ for one in found if not isinstance(one, Tensor | None))
        if others or not tensors:
            inside = (
                f" with {', '.join(others)} in it" if isinstance(returned, Mapping | tuple | list) and others else ""
            )
            hint = "return tensors [n, ...], which may be in tuples, lists and dictionaries"
            raise TypeError(f"{self.of} returned {type(returned).__name__}{inside}, and the loss reads tensors: {hint}")
        # The number of each tensor in its place; what is None stays.
        numbers = iter(range(len(tensors)))
        numbered = [None if one is None else next(numbers) for one in found]
        self.structures[self.training] = tree_unflatten(numbered, spec)
        return tensors

    def returned(self, streams: Streams) -> Any:
        """Return the value in this mode, of which these are the tensors."""
        structure = self.structures.get(self.training, 0)
        return streams[0] if structure == 0 else tree_map_only(int, streams.__getitem__, structure)


class OfModule(Block):
    """A block of a module that a class or function makes; the kinds below have forwards of their own."""

    draws = False
    make: Callable[..., nn.Module]
    of: str

    def __init__(self, inputs: Sequence[Shape], /, **options: Any) -> None:  # a module may have an option of that name
        super().__init__(inputs)
        self.module = type(self).make(**options)
        if not isinstance(self.module, nn.Module):
            raise TypeError(f"{self.of} returned {type(self.module).__name__}, and no torch.nn.Module")

    def value(self, *streams: Tensor) -> Any:
        """Return what the module returns."""
        return self.module(*streams)


class _Body(OfModule, Buffered):
    draws = False

    def forward(self, *streams: Tensor) -> Streams:
        """Return the module's output, or its outputs, as streams."""
        return as_outputs(self.value(*streams), self.of)


@cache
def block_of(make: Callable[..., nn.Module], *, head: bool = False) -> type[Block]:
    """Return the class of blocks whose forward is that of a module, of its class or of a function that makes one; of buffered ones, or of the head."""
    own = {"draws": False, "make": staticmethod(make), "of": f"{make.__module__}:{make.__qualname__}"}
    made = type(
        make.__name__,
        (OfModule, StructuredHead) if head else (_Body,),
        own | {name: getattr(make, name) for name in ("__doc__", "__module__", "__qualname__")},
    )
    options = [
        one if one.kind is one.VAR_KEYWORD else one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for one in inspect.signature(make).parameters.values()
        if one.kind is not one.VAR_POSITIONAL
    ]
    inputs = inspect.Parameter("_streams", inspect.Parameter.POSITIONAL_ONLY)  # no option has this name
    made.__signature__ = inspect.Signature([inputs, *options])  # type: ignore[attr-defined]
    return made


def as_outputs(returned: Any, by: str) -> Streams:
    """Return what a module returned as streams: a tensor, or those in a tuple or list; TypeError: something is no tensor."""
    outputs = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    if not all(isinstance(one, Tensor) for one in outputs):
        kinds = ", ".join(type(one).__name__ for one in outputs)
        hint = "in a module of your own, return the tensors [n, ...] that the next node reads, as in self.lstm(x)[0]"
        raise TypeError(f"{by} returned {kinds}, and streams are tensors: {hint}")
    return outputs

"""Any `torch.nn.Module` as a block.

Decision: a node makes its module by calling a class or a function, and never takes one that is there already. Its parameters are
then drawn under the key of the node, as those of any block: they follow from the seed and the node's name, and two nodes share none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from petra_graph.blocks import Block, Buffered, Head, Shape, Streams
from petra_graph.errors import Problem, SpecError
from petra_graph.plugins import named_code
from petra_graph_modules.cutting import NoTensors, put_together, taken_apart
from petra_graph_modules.declared import ModuleOptions


class _OfModule(Block):
    Options = ModuleOptions

    def __init__(self, inputs: Sequence[Shape], options: ModuleOptions) -> None:
        super().__init__(inputs, options)
        self.module = _made(options)

    def forward(self, *streams: Tensor) -> Streams:
        """Return the module's output, or its outputs, as streams."""
        returned = self.module(*streams)
        outputs = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
        if not all(isinstance(one, Tensor) for one in outputs):
            kinds = ", ".join(type(one).__name__ for one in outputs)
            hint = (
                "in a module of your own, return the tensors [n, ...] that the next node reads, as in self.lstm(x)[0]"
            )
            raise TypeError(f"{self.options.module} returned {kinds}, and streams are tensors: {hint}")
        return outputs


class Module(_OfModule, Buffered):
    """Streams to those that the module makes of them."""

    draws = False


class ModuleHead(_OfModule, Head):
    """Streams to what the module makes of them."""

    draws = False
    _structure: Any = 0
    """What the last forward returned, with numbers in the places of tensors."""

    def forward(self, *streams: Tensor) -> Streams:
        """Return the tensors of what the module returns."""
        returned = self.module(*streams)
        if isinstance(returned, Tensor):
            if self._structure != 0:
                self._structure = 0
            return (returned,)
        try:
            tensors, self._structure = taken_apart(returned)
        except NoTensors as error:
            hint = "return tensors [n, ...], which may be in tuples, lists and dictionaries"
            raise TypeError(f"{self.options.module} returned {error}, and the loss reads tensors: {hint}") from None
        return tensors

    def returned(self, streams: Streams) -> Any:
        """Return what the module has returned, of which these are the tensors."""
        return put_together(self._structure, streams)


def _made(options: ModuleOptions) -> nn.Module:
    make = named_code("module", options.module)
    made = make(**options.kwargs) if callable(make) and not isinstance(make, nn.Module) else make
    if made is make or not isinstance(made, nn.Module):
        found = "is an object already" if made is make else f"returned {type(made).__name__}, and no torch.nn.Module"
        hint = "name a class, or a function that makes a new module at each call: each node has parameters of its own"
        raise SpecError(Problem(message=f"{options.module} {found}", hint=hint, path=("module",)))
    return made

"""Any `torch.nn.Module` as a block.

Decision: a node makes its module by calling a class or a function, and never takes one that is there already. Its parameters are
then drawn under the key of the node, as those of any block: they follow from the seed and the node's name, and two nodes share none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from torch import Tensor, nn
from torch.utils._pytree import (  # the structures that torch.export knows, too
    tree_flatten,
    tree_map_only,
    tree_unflatten,
)

from petra_graph.blocks import AdditiveCoupling, Block, Buffered, Head, Shape, Streams
from petra_graph.blocks.module_block import as_outputs
from petra_graph.errors import Problem, SpecError
from petra_graph.plugins import Code, named_code

Made = Annotated[Code, 'class or function that makes the module, as "torch.nn:Conv2d" or "my_file:make_layer"']


Arguments = Annotated[Mapping[str, Any], "arguments that it is called with, by name"]
NO_ARGUMENTS: Mapping[str, Any] = {}


class _OfModule(Block):
    draws = False

    def __init__(
        self, inputs: Sequence[Shape], *, module: Made, kwargs: Arguments = NO_ARGUMENTS, **options: Any
    ) -> None:
        super().__init__(inputs, **options)
        self.of, self.module = module, _made("module", module, kwargs)

    def value(self, *streams: Tensor) -> Any:
        """Return what the module returns."""
        return self.module(*streams)


class Module(_OfModule, Buffered):
    """Any torch.nn.Module of streams: tensors in, one or several out."""

    draws = False

    def forward(self, *streams: Tensor) -> Streams:
        """Return the module's output, or its outputs, as streams."""
        return as_outputs(self.value(*streams), self.of)


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
        tensors, structure = ((returned,), 0) if isinstance(returned, Tensor) else taken_apart(returned, self.of)
        self.structures[self.training] = structure
        return tensors

    def returned(self, streams: Streams) -> Any:
        """Return the value in this mode, of which these are the tensors."""
        structure = self.structures.get(self.training, 0)
        return streams[0] if structure == 0 else tree_map_only(int, streams.__getitem__, structure)


class ModuleHead(_OfModule, StructuredHead):
    """Any torch.nn.Module as the head: tensors in, the output out."""

    draws = False


class Additive(AdditiveCoupling):
    """Additive coupling of any torch.nn.Module as F, whose output has its input's shape."""

    draws = False

    def __init__(self, inputs: Sequence[Shape], *, f: Made, kwargs: Arguments = NO_ARGUMENTS) -> None:
        super().__init__(inputs)
        self.f = _made("f", f, kwargs)

    def residual(self, x: Tensor) -> Tensor:
        """Return F(x)."""
        value: Tensor = self.f(x)
        return value


def _made(option: str, module: str, kwargs: Mapping[str, Any]) -> nn.Module:
    make = named_code(option, module)
    made = make(**kwargs) if callable(make) and not isinstance(make, nn.Module) else make
    if made is make or not isinstance(made, nn.Module):
        found = "is an object already" if made is make else f"returned {type(made).__name__}, and no torch.nn.Module"
        hint = "name a class, or a function that makes a new module at each call: each node has parameters of its own"
        raise SpecError(Problem(message=f"{module} {found}", hint=hint, path=(option,)))
    return made


def taken_apart(returned: Any, by: str) -> tuple[tuple[Tensor, ...], Any]:
    """Return the tensors of a structure, and the structure with the number of each in its place; what is None stays.

    Raises:
        TypeError: there is no tensor, or something else.
    """
    found, spec = tree_flatten(returned)
    tensors = tuple(one for one in found if isinstance(one, Tensor))
    others = dict.fromkeys(type(one).__name__ for one in found if not isinstance(one, Tensor | None))
    if others or not tensors:
        inside = f" with {', '.join(others)} in it" if isinstance(returned, Mapping | tuple | list) and others else ""
        hint = "return tensors [n, ...], which may be in tuples, lists and dictionaries"
        raise TypeError(f"{by} returned {type(returned).__name__}{inside}, and the loss reads tensors: {hint}")
    numbers = iter(range(len(tensors)))
    return tensors, tree_unflatten([None if one is None else next(numbers) for one in found], spec)

"""The tensors of a block that could not be trained or saved as its author means, found when it is built.

Only what `parameters()` and `buffers()` have is moved to a device, stepped and saved. Layers in a plain Python list train on
silently with the values that they began with; and what is moved takes the real type of the run's precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from petra_graph.units import listed

_OF_TORCH = frozenset(vars(nn.Module()))
_DEPTH = 3
"""How deep containers in attributes are looked into."""


@frozen
class TensorFault:
    """What is wrong with a block's tensors."""

    found: str
    """In words that follow the block's name."""
    remedy: str


def tensor_fault(block: nn.Module) -> TensorFault | None:
    """Return why the tensors of a block that has been built cannot be trained and saved; None where they can."""
    if lazy := [name for name, parameter in block.named_parameters() if is_lazy(parameter)]:
        return TensorFault(
            f"has parameters without a shape before the first forward: {', '.join(lazy)}",
            "use Linear for LazyLinear, and so on: `inputs` has the shapes that the block will read",
        )
    if hidden := list(_unregistered(block)):
        return TensorFault(
            f"holds what requires a gradient and is not a parameter, so that it is neither updated nor saved: {listed(hidden)}",
            "hold layers in nn.ModuleList or nn.ModuleDict instead of a list or a dict, a tensor in nn.Parameter or "
            "nn.ParameterList; what is not trained in register_buffer, or with requires_grad_(False)",
        )
    held = (*block.named_parameters(), *block.named_buffers())
    if numbers := [f"{name} ({one.dtype})" for name, one in held if one.is_complex()]:
        return TensorFault(
            f"has complex parameters or buffers, whose imaginary parts a real type would drop: {listed(numbers)}",
            "hold pairs of real numbers, of shape [..., 2], and read them with torch.view_as_complex",
        )
    return None


def _unregistered(block: nn.Module) -> Iterator[str]:
    """Yield the names of tensors that require a gradient, in attributes of the block or of its parts, and are not parameters.

    Private attributes of torch's own modules are left out: they hold what was registered a second time, or as it was
    before a parametrization.
    """
    registered = {id(parameter) for parameter in block.parameters()}
    for prefix, part in block.named_modules():
        of_torch = type(part).__module__.startswith("torch.")
        for name, value in vars(part).items():
            if name not in _OF_TORCH and not (of_torch and name.startswith("_")):
                for path, tensor in _tensors(value, f"{prefix}.{name}" if prefix else name, _DEPTH):
                    if tensor.requires_grad and tensor.is_leaf and id(tensor) not in registered:
                        yield path


def _tensors(value: Any, path: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, nn.Module):
        yield from ((f"{path}.{name}", parameter) for name, parameter in value.named_parameters())
    elif depth:
        items: Iterator[tuple[Any, Any]] = iter(())
        if isinstance(value, list | tuple):
            items = iter(enumerate(value))
        elif isinstance(value, Mapping):
            items = iter(value.items())
        for key, item in items:
            yield from _tensors(item, f"{path}[{key!r}]", depth - 1)

"""A network with tensors without values while its forward is recorded; afterwards it is as it was, whatever the forward has set.

Decision: the network itself, and no copy. A hook, or a function in an attribute, holds the module that it was made with: it would write to
the network while the copy reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

_OTHER = (str, int, float, type(None), nn.Module, Tensor, type, FunctionType, MethodType, ModuleType)
_DEPTH = 4
"""How deep containers and objects are looked into."""


@contextmanager
def borrowed(network: nn.Module, device: str) -> Iterator[Mapping[int, str]]:
    """Give a network zeros for its parameters and buffers, and yield their names by identity."""
    former: dict[int, tuple[Any, Any]] = {}
    for module in network.modules():
        _contents(vars(module), _DEPTH, former)
    own = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    given: dict[int, Tensor] = {}
    names: dict[int, str] = {}
    for name, tensor in own:
        if id(tensor) not in given:
            zeros = torch.zeros_like(tensor, device=device)
            given[id(tensor)] = nn.Parameter(zeros, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else zeros
            names[id(given[id(tensor)])] = name
    try:
        for module in network.modules():
            for held in (
                vars(module)["_parameters"],
                vars(module)["_buffers"],
            ):  # a setter would ask for the same class
                held.update({key: given[id(one)] for key, one in held.items() if one is not None})
        yield names
    finally:
        for container, content in former.values():
            container.clear()
            (container.extend if isinstance(container, list) else container.update)(content)


def _contents(value: Any, depth: int, found: dict[int, tuple[Any, Any]]) -> None:
    """Find the containers in attributes, each with what is in it now."""
    if depth == 0 or isinstance(value, _OTHER) or id(value) in found:
        return
    if isinstance(value, MutableMapping | list | set):
        found[id(value)] = value, value.copy() if hasattr(value, "copy") else dict(value)
    inside = value.values() if isinstance(value, MutableMapping) else value if isinstance(value, list | tuple) else ()
    for one in inside:
        _contents(one, depth - 1, found)
    if type(value).__module__ != "builtins" and hasattr(value, "__dict__"):
        _contents(vars(value), depth - 1, found)

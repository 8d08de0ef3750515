"""What a module remembers outside its parameters: counters, averages, caches, generators of its own.

A micro-batch passes a block two or three times: forward, reconstruction, recomputation. What moves at every pass counts it as
often, and is not in a checkpoint unless it is a buffer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor, nn

_OF_TORCH = frozenset(vars(nn.Module()))
_DEPTH = 4
"""How deep containers and objects are looked into."""
State = Mapping[str, object]
"""What can be compared, by the attribute's name, as in "running.mean"."""


def state_of(module: nn.Module) -> State:
    """Return a copy of all that the module and its parts remember, except parameters."""
    state: dict[str, object] = {name: _copy(value, 0) for name, value in module.named_buffers()}
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in _OF_TORCH and not isinstance(value, nn.Module):
                state[f"{prefix}.{name}" if prefix else name] = _copy(value, 0)
    return state


def moved(before: State, after: State) -> list[str]:
    """Return the names of what differs."""
    return [name for name, value in after.items() if name in before and before[name] != value]


@frozen
class Held:
    """The parameters and buffers of a module, and what tells which of its parameters were written to."""

    tensors: Mapping[str, Tensor]
    versions: Mapping[str, int]

    @classmethod
    def by(cls, module: nn.Module) -> Held:
        """Return what a module holds now."""
        parameters = dict(module.named_parameters())
        versions = {name: one._version for name, one in parameters.items()}  # noqa: SLF001  torch has no public name
        return cls({**parameters, **dict(module.named_buffers())}, versions)

    def made(self, module: nn.Module) -> list[str]:
        """Return the names of parameters and buffers that were made since; a buffer may be replaced."""
        made = [name for name, one in module.named_parameters() if self.tensors.get(name) is not one]
        return made + [name for name, _ in module.named_buffers() if name not in self.tensors]

    def written(self, module: nn.Module) -> list[str]:
        """Return the names of parameters whose values were written in place since."""
        now = Held.by(module).versions
        return [name for name, version in now.items() if self.versions.get(name, version) != version]


def _copy(value: Any, depth: int) -> object:
    for kind, copy in _COPIES.items():
        if isinstance(value, kind):
            return copy(value)
    return None if depth == _DEPTH else _looked_into(value, depth)


def _looked_into(value: Any, depth: int) -> object:
    if isinstance(value, Mapping):
        return [(repr(key), _copy(item, depth + 1)) for key, item in value.items()]
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return [_copy(item, depth + 1) for item in value]
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    if hasattr(value, "__dict__"):
        return [(key, _copy(item, depth + 1)) for key, item in vars(value).items()]
    # An address says nothing: every pass may make a new object.
    text = repr(value)
    return type(value).__qualname__ if text.startswith("<") and " at 0x" in text else text


def _values(value: Tensor) -> object:
    flat = value.detach().reshape(-1).contiguous()
    read = flat.numel() > 0 and flat.device.type != "meta"
    return str(value.dtype), tuple(value.shape), flat.view(torch.uint8).numpy().tobytes() if read else b""


_COPIES: Mapping[type, Callable[[Any], object]] = {
    nn.Parameter: lambda _: None,
    nn.Module: lambda _: None,
    type: lambda _: None,
    Tensor: _values,
    np.ndarray: lambda value: (str(value.dtype), value.shape, value.tobytes()),
    torch.Generator: lambda value: _values(value.get_state()),
    random.Random: lambda value: repr(value.getstate()),
    np.random.Generator: lambda value: repr(value.bit_generator.state),
}
"""By type, the subclasses before their bases, a value that compares as the state does."""

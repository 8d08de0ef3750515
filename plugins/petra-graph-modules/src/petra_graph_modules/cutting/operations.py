"""Operations as a recorder writes them down and compares them: what they are called, read, draw and follow from."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode

from petra_graph.blocks.block_kinds import without_autocast
from petra_graph.kinds.author_code import is_author_code

_DEVICES = ("cpu", "cuda", "mps", "xpu")


@frozen
class Device:
    """The device on which the network runs."""


@frozen
class Applied:
    """Calls a `torch.autograd.Function`, whose backward is its own."""

    of: type[torch.autograd.Function]
    __name__ = "applied"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what it returns."""
        return self.of.apply(*args, **kwargs)


def autocast_on() -> Sequence[bool]:
    return [torch.is_autocast_enabled(device) for device in _DEVICES]


def autocast_regions() -> int:
    """Return how many `with torch.autocast(...)` are entered, whether these switch it on or off."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def enter_float32(like: Tensor) -> AbstractContextManager[object]:
    """Switch autocast off, as the author's region around an operation does; `leave_float32` takes what this returns."""
    region = without_autocast(like.device.type)
    region.__enter__()
    return region


def leave_float32(region: AbstractContextManager[object]) -> None:
    region.__exit__(None, None, None)


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether an operation draws random numbers, which on the meta device moves no generator."""

    any = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.any = self.any or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def numbered(graph: fx.Graph, numbers: dict[object, int], given: Mapping[fx.Node, int]) -> dict[fx.Node, int]:
    """Number the nodes of a graph, equal ones alike: those of one operation on equal arguments."""
    found = dict(given)
    for node in graph.nodes:
        read = lambda one: f"%{found[one]}" if isinstance(one, fx.Node) else one  # noqa: E731
        if node not in found:
            key = node.op, node.target, repr(map_aggregate((node.args, dict(node.kwargs)), read))
            found[node] = numbers.setdefault(key, len(numbers))
    return found


def assigned(tensor: Tensor, index: Any, value: Any) -> Tensor:
    """Return a tensor after `tensor[index] = value`."""
    tensor[index] = value
    return tensor


def is_fixed(node: fx.Node) -> bool:
    """Whether a value follows from sizes and buffers alone."""
    told = node.op in {"placeholder", "call_module"} or node.meta.get("random") or node.meta.get("parameter")
    return not told and all(map(is_fixed, node.all_input_nodes))


def is_method(function: Any) -> bool:
    of = getattr(function, "__objclass__", None) or getattr(function, "__module__", None)
    return of is torch._C.TensorBase or of == "torch._tensor"  # noqa: SLF001  where torch has the methods of tensors


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in an operation's arguments or results."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from tensors_in(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from tensors_in(one)


def running_line() -> str:
    """Return the line of the author's code that is running."""
    frame = sys._getframe()  # noqa: SLF001  Python's documented way to the callers of a function
    while frame.f_back is not None and not is_author_code(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"

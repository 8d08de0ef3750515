"""Replacements of operations that count bytes wrongly without memory (meta device, fake tensors), or are slow.

convolution             on the meta device the contiguous layout comes out whatever goes in; the CPU's and cuDNN's follow
                        input and weight into channels-last, and a wrong layout costs a copy at every node's end;
                        torch 2.8 returns the gradient of the weight contiguous, too
batch normalisation     torch's runs the arithmetic step by step, which took most of the time of a plan, and keeps
                        statistics of bfloat16 in bfloat16, where the CPU has float32
attention               the meta device multiplies whole matrices, where devices have kernels that keep none
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from petra_graph.program.message_layout import IMAGE_DIMENSIONS


class ShapesAlone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Replaces what is slow, and leaves layouts as they come: for shapes and types of results."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation, or its replacement on the meta device."""
        replaced = _ANYWHERE.get(func) if args and isinstance(args[0], Tensor) and args[0].is_meta else None
        return (replaced or func)(*args, **(kwargs or {}))


class NotOnMeta(Exception):
    """An operation whose meta implementation differs from that of devices with memory."""


def call(func: Any, args: Any, kwargs: Any) -> Any:
    """Call an operation or its replacement below; on the meta device once for each form of arguments, which that of results follows from."""
    first = args[0] if args else None
    if isinstance(first, FakeTensor):
        return _ANYWHERE.get(func, func)(*args, **kwargs)
    if not (isinstance(first, Tensor) and first.is_meta):
        return func(*args, **kwargs)
    return _remembered(func, _ANYWHERE.get(func) or _ON_META.get(func) or func, args, kwargs)


def _remembered(func: Any, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return results like those of an earlier call whose arguments had the same form, or run the operation."""
    returns = _returns(func)
    try:
        key = (func, _form(args), _form(tuple(kwargs.items()))) if returns else None
        known = _KNOWN.get(key)
    except TypeError:  # a sparse tensor, or what has no hash
        return run(*args, **kwargs)
    if known is not None:
        made = tuple(one and torch.empty_strided(one[0], one[1], dtype=one[2], device=one[3]) for one in known)
        return args[0] if returns == "first" else made if len(made) > 1 else made[0]
    found = run(*args, **kwargs)
    several = found if isinstance(found, tuple) else (found,)
    if returns == "first" and found is args[0]:
        _KNOWN[key] = ()
    elif returns == "new" and _have_own_memory(several, (args, kwargs)):
        _KNOWN[key] = tuple(one if one is None else _form(one) for one in several)
    return found


def _have_own_memory(found: Sequence[Any], given: Any) -> bool:
    """Whether results are tensors that share memory with nothing: `_unsafe_view` does, though it is not declared as a view."""
    made = [one for one in found if one is not None]
    if not all(isinstance(one, Tensor) and one.layout is torch.strided for one in made):
        return False
    memory = {one.untyped_storage() for one in made}
    shared = any(isinstance(one, Tensor) and one.untyped_storage() in memory for one in tree_leaves(given))
    return not shared and len(memory) == len(made)


@cache
def _returns(func: Any) -> str:
    """Return whether an operation returns "new" tensors, or its "first" argument, changed element by element; "" for others, such as views."""
    schema = func._schema  # noqa: SLF001  torch has no other name for it
    if schema.is_mutable:
        return "first" if torch.Tag.pointwise in func.tags else ""
    return "" if any(one.alias_info is not None for one in schema.returns) else "new"


def _form(value: Any) -> Any:
    """Return what the form of a result follows from: of a tensor its shape, strides, type and device; TypeError for a sparse one."""
    if isinstance(value, Tensor):
        if value.layout is not torch.strided:
            raise TypeError(value.layout)
        return value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, tuple | list):
        return tuple(map(_form, value))
    return type(value), value


_KNOWN: dict[Any, Any] = {}
"""The forms of results in this process."""


def _convolution(x: Tensor, weight: Tensor, *others: Any) -> Tensor:
    result: Tensor = torch.ops.aten.convolution.default(x, weight, *others)
    return torch.empty_like(result, memory_format=torch.channels_last) if _is_channels_last(x, weight) else result


def _convolution_backward(gradient: Tensor, x: Tensor, weight: Tensor, *others: Any) -> tuple[Tensor | None, ...]:
    of_x, of_weight, of_bias = torch.ops.aten.convolution_backward.default(gradient, x, weight, *others)
    if _is_channels_last(x, weight):
        of_x, of_weight = (
            None if found is None else torch.empty_like(found, memory_format=torch.channels_last)
            for found in (of_x, of_weight)
        )
    return of_x, of_weight, of_bias


def _is_channels_last(x: Tensor, weight: Tensor) -> bool:
    formats = {suggest_memory_format(x), suggest_memory_format(weight)}
    return x.dim() == IMAGE_DIMENSIONS and torch.channels_last in formats


def _batch_norm(x: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    *_, training, _, _ = others
    mean, inverse_std = (x.new_empty(x.shape[1] if training else 0, dtype=_statistics_dtype(x)) for _ in range(2))
    return torch.empty_like(x), mean, inverse_std


def _batch_norm_backward(*arguments: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    _, x, weight, *_, (needs_x, needs_weight, needs_bias) = arguments
    like = x.new_empty(x.shape[1], dtype=_statistics_dtype(x)) if weight is None else weight
    return (
        torch.empty_like(x) if needs_x else None,
        torch.empty_like(like) if needs_weight else None,
        torch.empty_like(like) if needs_bias else None,
    )


def _attention(*_: Any) -> Tensor:
    raise NotOnMeta("scaled_dot_product_attention")


def _statistics_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


_ANYWHERE: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.native_batch_norm.default: _batch_norm,
    torch.ops.aten.native_batch_norm_backward.default: _batch_norm_backward,
}
_ON_META: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.convolution.default: _convolution,
    torch.ops.aten.convolution_backward.default: _convolution_backward,
    torch.ops.aten._safe_softmax.default: _attention,  # noqa: SLF001  attention by matrix products has it, and nothing else
}

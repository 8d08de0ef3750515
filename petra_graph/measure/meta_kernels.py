"""Replacements of operations that count bytes wrongly without memory (meta device, fake tensors), or are slow.

convolution             on the meta device the contiguous layout comes out whatever goes in; the CPU's and cuDNN's follow
                        input and weight into channels-last, and a wrong layout costs a copy at every node's end;
                        torch 2.8 returns the gradient of the weight contiguous, too
batch normalisation     torch's runs the arithmetic step by step, which took most of the time of a plan, and keeps
                        statistics of bfloat16 in bfloat16, where the CPU has float32
attention               the meta device multiplies whole matrices, where devices have kernels that keep none
element by element      the meta device broadcasts and promotes step by step in Python; the form of a result follows from those of the
                        arguments, so it is asked for once
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

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
    """Call an operation, or its replacement below on the meta device."""
    first = args[0] if args else None
    replaced = None
    if isinstance(first, FakeTensor):
        replaced = _ANYWHERE.get(func)
    elif isinstance(first, Tensor) and first.is_meta:
        replaced = _ANYWHERE.get(func) or _ON_META.get(func)
        if replaced is None and torch.Tag.pointwise in func.tags:
            return _pointwise(func, args, kwargs)
    return func(*args, **kwargs) if replaced is None else replaced(*args, **kwargs)


def _pointwise(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of an operation element by element: its first argument if it is written there, or else a new tensor."""
    key = (func, *map(_form, args), *((name, _form(value)) for name, value in kwargs.items()))
    try:
        form = _FORMS.get(key)
    except TypeError:  # a list is among them
        return func(*args, **kwargs)
    if form is None:
        result = func(*args, **kwargs)
        if result is args[0]:
            _FORMS[key] = ()
        elif isinstance(result, Tensor) and func._schema.returns[0].alias_info is None:  # noqa: SLF001  torch has no other name for it
            _FORMS[key] = (result.shape, result.stride(), result.dtype)
        return result
    if not form:
        return args[0]
    shape, stride, dtype = form
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def _form(value: Any) -> Any:
    """Return what the form of a result follows from: of a tensor its shape, strides, type and device; of a number its type."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    return type(value) if isinstance(value, bool | int | float | complex) else value


_FORMS: dict[Any, tuple[Any, ...]] = {}
"""The forms of results element by element, of the process; () if the result is the first argument."""


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

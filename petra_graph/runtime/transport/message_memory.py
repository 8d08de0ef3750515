"""Messages as tensors over raw memory, in the layout that the program gives them."""

from __future__ import annotations

import torch
from torch import Tensor

from petra_graph.executor.encoded_tensors import EncodedTensor, EncodedTensors, payload
from petra_graph.program.message_layout import Extent, MessageLayout, TensorLayout


def write(layout: MessageLayout, memory: Tensor, encoded: EncodedTensors) -> int:
    """Copy a message into `memory`, uint8 [bytes], and return how many bytes it takes."""
    pairs = zip(layout.tensors, encoded, strict=True)
    samples = next((payload(value).shape[0] for tensor, value in pairs if tensor.per_sample), 0)
    extents, size = layout.extents(samples)
    for value, (place, scale) in zip(encoded, extents, strict=True):
        _view(place, memory).copy_(payload(value))
        if isinstance(value, EncodedTensor) and value.scale is not None:
            _view(scale, memory).copy_(value.scale)
    return size


def read(layout: MessageLayout, memory: Tensor, samples: int) -> EncodedTensors:
    """Return the message in `memory`, uint8 [bytes]; its tensors are views, nothing is copied."""
    extents, _ = layout.extents(samples)
    return tuple(
        _value(tensor, _view(place, memory), _view(scale, memory) if tensor.scaled else None)
        for tensor, (place, scale) in zip(layout.tensors, extents, strict=True)
    )


def _view(extent: Extent, memory: Tensor) -> Tensor:
    dtype: torch.dtype = getattr(torch, extent.dtype)
    return memory[extent.offset : extent.end].view(dtype).as_strided(extent.shape, extent.strides)


def _value(tensor: TensorLayout, elements: Tensor, scale: Tensor | None) -> Tensor | EncodedTensor:
    if tensor.stored == tensor.dtype:
        return elements
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    return EncodedTensor(payload=elements, scale=scale, dtype=dtype)

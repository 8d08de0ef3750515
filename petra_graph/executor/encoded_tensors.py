"""Tensors in fewer bytes, for inputs that wait for their backward and for messages between stages.

`float32`, `bfloat16` and `float16` are casts. `int8` is symmetric, with one scale a tensor:

    scale = max |x| / 127    in float32
    q     = round(x / scale)    half to even, in int8; decoded as q * scale, at most scale / 2 away from x

The arithmetic is done in the tensor's own type (float64 under `precision.compute = "float64"`), and memory formats are kept.
`program.message_layout` gives the bytes: a message has the same layout for every micro-batch.

Decision: nothing breaks in silence. A tensor with an infinity or a NaN has a NaN for its int8 scale and decodes to NaN
everywhere; a value beyond the range of float16 becomes an infinity and stays one. Both reach the loss, where a run stops.
Values that are too small become zero: below 6e-8 in float16, which has no loss scaling here, below scale / 2 in int8;
bfloat16 keeps float32's range. Zeros are zeros in all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
from attrs import frozen
from torch import Tensor

from petra_graph.blocks import Streams
from petra_graph.program.message_layout import encoded_dtype
from petra_graph.spec.model import StoredDtype

LEVELS = 127
"""Steps from zero to the largest magnitude."""


@frozen(kw_only=True, eq=False)
class EncodedTensor:
    """One encoded tensor."""

    payload: Tensor
    """In the shape and layout of the tensor."""
    scale: Tensor | None
    """float32, without dimensions; only for int8."""
    dtype: torch.dtype
    """The type after decoding."""

    def to(self, device: torch.device, *, non_blocking: bool = False) -> EncodedTensor:
        """Return the tensor on `device`; a tensor that is already there is not copied."""
        scale = None if self.scale is None else self.scale.to(device, non_blocking=non_blocking)
        return attrs.evolve(self, payload=self.payload.to(device, non_blocking=non_blocking), scale=scale)


EncodedTensors = tuple[Tensor | EncodedTensor, ...]
"""Streams of which some may be encoded."""


def payload(value: Tensor | EncodedTensor) -> Tensor:
    """Return the tensor that holds the elements, encoded or not."""
    return value.payload if isinstance(value, EncodedTensor) else value


def map_payloads(function: Callable[[Tensor], Tensor], tensors: EncodedTensors) -> EncodedTensors:
    """Apply a function to the payload of each tensor; int8 scales stay as they are."""
    return tuple(
        attrs.evolve(value, payload=function(value.payload)) if isinstance(value, EncodedTensor) else function(value)
        for value in tensors
    )


def copied(tensors: EncodedTensors) -> EncodedTensors:
    """Return copies, scales included, that share no memory with the originals."""
    return tuple(
        attrs.evolve(value, scale=value.scale.clone())
        if isinstance(value, EncodedTensor) and value.scale is not None
        else value
        for value in map_payloads(Tensor.clone, tensors)
    )


def encodes(stored: StoredDtype, dtype: torch.dtype) -> bool:
    """Whether `encode` changes floating-point streams of a type."""
    own = str(dtype).removeprefix("torch.")
    return encoded_dtype(stored, own) != own


def encode(streams: Streams, stored: StoredDtype) -> EncodedTensors:
    """Encode the streams that become smaller; the others are the same tensors, not copies."""
    return streams if stored == "as-streams" else tuple(_encoded(stream, stored) for stream in streams)


def decode(tensors: EncodedTensors) -> Streams:
    """Return the streams in their own type; tensors that were not encoded are the same, not copies."""
    return tuple([_decoded(value) if isinstance(value, EncodedTensor) else value for value in tensors])


def total(value: Tensor | EncodedTensor) -> Tensor:
    """Return a scalar that is finite exactly if the decoded tensor is, unless its sum overflows."""
    if not isinstance(value, EncodedTensor):
        return value.sum()
    # float16 sums would overflow far below what a float16 tensor may hold.
    return value.payload.sum(dtype=value.dtype) if value.scale is None else value.scale


def _encoded(stream: Tensor, stored: StoredDtype) -> Tensor | EncodedTensor:
    own = str(stream.dtype).removeprefix("torch.")
    name = encoded_dtype(stored, own)
    if name == own:
        return stream
    if name == "int8":
        return _quantised(stream)
    return EncodedTensor(payload=stream.to(getattr(torch, name)), scale=None, dtype=stream.dtype)


def _quantised(stream: Tensor) -> EncodedTensor:
    scale = _scale(stream)
    steps = (stream / scale.to(stream.dtype)).round_().clamp_(-LEVELS, LEVELS)
    # A cast of NaN to an integer is undefined; the scale alone makes it NaN again.
    return EncodedTensor(payload=steps.nan_to_num_(0.0).to(torch.int8), scale=scale, dtype=stream.dtype)


def _scale(stream: Tensor) -> Tensor:
    """Return max |x| / 127, at least the least normal float32, so that zeros do not divide by zero."""
    if not stream.numel():
        return torch.ones((), device=stream.device)
    low, high = stream.aminmax()
    scale = (torch.maximum(-low, high) / LEVELS).to(torch.float32).clamp_min(torch.finfo(torch.float32).tiny)
    return torch.where(scale.isfinite(), scale, torch.nan)


def _decoded(value: EncodedTensor) -> Tensor:
    wide = value.payload.to(value.dtype)
    return wide if value.scale is None else wide.mul_(value.scale.to(value.dtype))

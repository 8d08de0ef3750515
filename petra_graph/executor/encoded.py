"""Tensors in fewer bytes, for inputs that wait for their backward (`precision.buffer_dtype`) and for messages between stages (`channel_dtype`).

`bfloat16` is a cast. `int8` is symmetric, with one scale a tensor, and computed in the tensor's own type:

    scale = max |x| / 127    in float32
    q     = round(x / scale)    half to even, in int8; decoded as q * scale, at most scale / 2 away from x

A tensor with an infinity or a NaN has a NaN for its int8 scale and decodes to NaN everywhere, which reaches the loss, where a run stops.
Integers are never encoded, and memory formats are kept. `program.channels` gives the bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
from attrs import frozen
from torch import Tensor

from petra_graph.blocks import Streams
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


EncodedTensors = tuple[Tensor | EncodedTensor, ...]
"""Streams of which some may be encoded."""


def payload(value: Tensor | EncodedTensor) -> Tensor:
    """Return the tensor that holds the elements, encoded or not."""
    return value.payload if isinstance(value, EncodedTensor) else value


def each(function: Callable[[Tensor], Tensor], tensors: EncodedTensors) -> EncodedTensors:
    """Return what a function makes of each tensor, payloads and scales included."""
    return tuple(
        attrs.evolve(one, payload=function(one.payload), scale=one.scale if one.scale is None else function(one.scale))
        if isinstance(one, EncodedTensor)
        else function(one)
        for one in tensors
    )


def encode(streams: Streams, stored: StoredDtype) -> EncodedTensors:
    """Encode the streams in floating point; the others are the same tensors, not copies."""
    if stored == "as-streams":
        return streams
    encoded = _quantised if stored == "int8" else _cast
    return tuple(encoded(stream) if stream.is_floating_point() else stream for stream in streams)


def decode(tensors: EncodedTensors) -> Streams:
    """Return the streams in their own type; tensors that were not encoded are the same, not copies."""
    return tuple([_decoded(value) if isinstance(value, EncodedTensor) else value for value in tensors])


def _cast(stream: Tensor) -> EncodedTensor:
    return EncodedTensor(payload=stream.to(torch.bfloat16), scale=None, dtype=stream.dtype)


def _quantised(stream: Tensor) -> EncodedTensor:
    scale = torch.ones((), device=stream.device)
    if stream.numel():
        low, high = stream.aminmax()
        # At least the least normal number, so that zeros do not divide by zero.
        scale = (torch.maximum(-low, high) / LEVELS).to(torch.float32).clamp_min(torch.finfo(torch.float32).tiny)
        scale = torch.where(scale.isfinite(), scale, torch.nan)
    steps = (stream / scale.to(stream.dtype)).round_().clamp_(-LEVELS, LEVELS)
    # A cast of NaN to an integer is undefined; the scale alone makes it NaN again.
    return EncodedTensor(payload=steps.nan_to_num_(0.0).to(torch.int8), scale=scale, dtype=stream.dtype)


def _decoded(value: EncodedTensor) -> Tensor:
    wide = value.payload.to(value.dtype)
    return wide if value.scale is None else wide.mul_(value.scale.to(value.dtype))

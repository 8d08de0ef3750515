"""How a message lies in memory: known before the first one is sent, so that none needs a header.

    | stream 0: payload | scale | stream 1: payload | ...        each begins at a multiple of 64 bytes

Only the number of samples may differ from message to message (an evaluation's last batch is smaller), and both ends
know it. What lies in a slot is what the executor sends, encoded or not, in its own layout: reading copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.blocks import Shape
from petra_graph.executor.encoded_tensors import EncodedTensor, EncodedTensors
from petra_graph.executor.numerics import STREAM_DTYPE, dense_strides, memory_format
from petra_graph.program.encoding import encoded_dtype
from petra_graph.spec.model import PrecisionSpec, StoredDtype

_ALIGNMENT_BYTES = 64


@frozen(kw_only=True)
class TensorFormat:
    """One tensor of a message."""

    shape: Shape
    """Without the batch dimension."""
    dtype: torch.dtype
    """What it is decoded to."""
    stored: torch.dtype
    """What its elements are sent in."""
    channels_last: bool
    vacant: bool = False
    """The gradient of integers: an empty tensor, which nobody reads."""

    @property
    def scaled(self) -> bool:
        """Whether a float32 scale comes with it."""
        return self.stored == torch.int8 != self.dtype

    def full_shape(self, samples: int) -> tuple[int, ...]:
        """Return the shape with the batch dimension."""
        return (0,) if self.vacant else (samples, *self.shape)


@frozen(kw_only=True)
class MessageFormat:
    """All tensors of a channel's messages, in order."""

    tensors: tuple[TensorFormat, ...]

    def nbytes(self, samples: int) -> int:
        """Return the bytes of a message of so many samples."""
        return _places(self, samples)[1]

    def write(self, memory: Tensor, carried: EncodedTensors) -> int:
        """Copy a message into `memory`, flat bytes, and return how many it takes."""
        samples = next((_payload(value).shape[0] for value in carried if _payload(value).numel()), 0)
        places, size = _places(self, samples)
        for value, (payload, scale) in zip(carried, places, strict=True):
            payload.of(memory).copy_(_payload(value))
            if isinstance(value, EncodedTensor) and value.scale is not None:
                scale.of(memory).copy_(value.scale)
        return size

    def read(self, memory: Tensor, samples: int) -> EncodedTensors:
        """Return the message that lies in `memory`; it is not copied."""
        places, _ = _places(self, samples)
        return tuple(
            _value(tensor, payload.of(memory), scale.of(memory) if tensor.scaled else None)
            for tensor, (payload, scale) in zip(self.tensors, places, strict=True)
        )


def stream_formats(
    shapes: Sequence[Shape], dtypes: Sequence[torch.dtype], precision: PrecisionSpec, stored: StoredDtype
) -> tuple[TensorFormat, ...]:
    """Return the formats of a node's streams.

    Args:
        shapes: without the batch dimension.
        dtypes: as measured; all floating-point streams run in the precision's own type.
        precision: of the run.
        stored: how they are encoded.
    """
    own = STREAM_DTYPE[precision.compute]
    found = [own if dtype.is_floating_point else dtype for dtype in dtypes]
    return tuple(
        TensorFormat(
            shape=shape,
            dtype=dtype,
            stored=getattr(torch, encoded_dtype(stored, str(dtype).removeprefix("torch."))),
            channels_last=memory_format(precision, len(shape) + 1) == torch.channels_last,
        )
        for shape, dtype in zip(shapes, found, strict=True)
    )


@frozen
class _Place:
    """Where a tensor lies within a message."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end(self) -> int:
        return self.offset + prod(self.shape) * self.dtype.itemsize

    def of(self, memory: Tensor) -> Tensor:
        return memory[self.offset : self.end].view(self.dtype).as_strided(self.shape, self.strides)


@lru_cache(maxsize=1024)
def _places(message: MessageFormat, samples: int) -> tuple[tuple[tuple[_Place, _Place], ...], int]:
    """Return payload's and scale's place of each tensor, and the bytes of the whole."""
    places = tuple(_in_order(message, samples))
    return places, max((place[1].end for place in places), default=0)


def _in_order(message: MessageFormat, samples: int) -> Iterator[tuple[_Place, _Place]]:
    end = 0
    for tensor in message.tensors:
        shape = tensor.full_shape(samples)
        wanted = torch.channels_last if tensor.channels_last and not tensor.vacant else torch.contiguous_format
        payload = _Place(_aligned(end), shape, dense_strides(shape, wanted), tensor.stored)
        after = _aligned(payload.end)
        scale = _Place(after, (), (), torch.float32) if tensor.scaled else _Place(after, (0,), (1,), torch.float32)
        yield payload, scale
        end = scale.end


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _payload(value: Tensor | EncodedTensor) -> Tensor:
    return value.payload if isinstance(value, EncodedTensor) else value


def _value(tensor: TensorFormat, payload: Tensor, scale: Tensor | None) -> Tensor | EncodedTensor:
    if tensor.stored == tensor.dtype:
        return payload
    return EncodedTensor(payload=payload, scale=scale, dtype=tensor.dtype)

"""The layout of a message in memory: known at compile time, so that no message needs a header.

    | stream 0: payload | scale | stream 1: payload | ...        each begins at a multiple of 64 bytes

Only the number of samples may differ from message to message (the last batch of an evaluation is smaller), and the length to which a
micro-batch is padded, where a data set declares lengths: then there is a layout for each. Both ends know both numbers beforehand. A tensor lies in a message as the executor sends it, encoded or not, in its own memory format.

| stored as | contents |
|---|---|
| `as-streams` | the tensor itself |
| `bfloat16` | the tensor in that type |
| `int8` | the tensor in int8, and one float32 scale |

Integers, images and tokens, are never encoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

from attrs import frozen

from petra_graph.spec.model import PrecisionSpec, StoredDtype

_TYPES: Mapping[int, tuple[str, ...]] = {
    1: ("int8", "uint8", "bool"),
    2: ("float16", "bfloat16", "int16", "uint16"),
    4: ("float32", "int32", "uint32"),
    8: ("float64", "int64", "uint64", "complex64"),
    16: ("complex128",),
}
ITEM_BYTES: Mapping[str, int] = {name: size for size, names in _TYPES.items() for name in names}
FLOATING = ("float64", "float32", "bfloat16", "float16")


def encoded_dtype(stored: StoredDtype, own: str) -> str:
    """Return the type in which the elements of a tensor of type `own` are stored."""
    if stored == "as-streams" or own not in FLOATING:
        return own
    return stored


_ALIGNMENT_BYTES = 64
IMAGE_DIMENSIONS = 4
"""Samples, channels, height, width."""


class StreamType(NamedTuple):
    """Shape and element type of one stream, as a network in float32 returns it."""

    shape: tuple[int, ...]
    """Without the batch dimension."""
    dtype: str
    """As torch names it: "float32", "int64"."""


@frozen(kw_only=True)
class TensorLayout:
    """One tensor of a message."""

    shape: tuple[int, ...]
    """Without the batch dimension."""
    dtype: str
    """The element type after decoding."""
    stored: str
    """The element type in the message."""
    channels_last: bool
    per_sample: bool = True
    """Whether the tensor has a batch dimension."""

    @property
    def scaled(self) -> bool:
        """Whether a float32 scale comes with the payload."""
        return self.stored == "int8" != self.dtype

    def gradient(self) -> TensorLayout:
        """Return the layout of this stream's gradient: of an integer stream an empty tensor, which the receiver does not read."""
        if self.dtype in FLOATING:
            return self
        return TensorLayout(shape=(0,), dtype=self.dtype, stored=self.dtype, channels_last=False, per_sample=False)


WEIGHT = TensorLayout(shape=(1,), dtype="float64", stored="float64", channels_last=False, per_sample=False)
"""The weight of a micro-batch's targets, the last tensor of every backward message."""


class Extent(NamedTuple):
    """The place of a tensor within a message."""

    offset: int
    """In bytes."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    dtype: str

    @property
    def end(self) -> int:
        return self.offset + prod(self.shape) * ITEM_BYTES[self.dtype]


@frozen(kw_only=True)
class MessageLayout:
    """All tensors of a channel's messages, in order."""

    tensors: tuple[TensorLayout, ...] = ()
    samples: int = 0
    """In a training micro-batch; of an evaluation batch, at most."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of all tensors and scales of a full message, without alignment."""
        extents, _ = self.extents(self.samples)
        return sum(extent.end - extent.offset for pair in extents for extent in pair)

    @property
    def most_bytes(self) -> int:
        """Bytes of a full message in memory."""
        return self.extents(self.samples)[1]

    def extents(self, samples: int) -> tuple[tuple[tuple[Extent, Extent], ...], int]:
        """Return the extents of each tensor's payload and scale, and the bytes of the whole message."""
        return _extents(self.tensors, samples)


def stream_layouts(
    streams: Sequence[StreamType], precision: PrecisionSpec, stored: StoredDtype
) -> tuple[TensorLayout, ...]:
    """Return the layouts of a node's streams, as measured; all floating-point streams are kept in the precision's own type."""
    own = "float64" if precision.compute == "float64" else "float32"
    return tuple(
        TensorLayout(
            shape=shape,
            dtype=dtype,
            stored=encoded_dtype(stored, dtype),
            channels_last=precision.memory_format == "channels-last" and len(shape) + 1 == IMAGE_DIMENSIONS,
        )
        for shape, dtype in ((shape, own if dtype in FLOATING else dtype) for shape, dtype in streams)
    )


def dense_strides(shape: tuple[int, ...], *, channels_last: bool) -> tuple[int, ...]:
    """Return the strides of a dense tensor in elements, those of dimensions with one element included."""
    order = [0, *range(2, len(shape)), 1] if channels_last else list(range(len(shape)))
    strides = [1] * len(shape)
    for outer, inner in reversed(list(pairwise(order))):
        strides[outer] = strides[inner] * max(1, shape[inner])
    return tuple(strides)


@lru_cache(maxsize=4096)
def _extents(tensors: tuple[TensorLayout, ...], samples: int) -> tuple[tuple[tuple[Extent, Extent], ...], int]:
    extents: list[tuple[Extent, Extent]] = []
    end = 0
    for tensor in tensors:
        shape = (samples, *tensor.shape) if tensor.per_sample else tensor.shape
        strides = dense_strides(shape, channels_last=tensor.channels_last)
        payload = Extent(aligned(end), shape, strides, tensor.stored)
        scale = Extent(aligned(payload.end), () if tensor.scaled else (0,), () if tensor.scaled else (1,), "float32")
        extents.append((payload, scale))
        end = scale.end
    return tuple(extents), end


def aligned(offset: int) -> int:
    """Return the next offset, in bytes, at which a tensor may begin."""
    return -(-offset // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES

"""The channels of a program, one for each direction of an edge between two stages, along which messages keep their order; and how messages lie in memory.

    producer's stage --- forward channel: streams -------------------------> consumer's stage
                     <-- backward channel: gradients (and activations), weight

    | stream 0: payload | scale | stream 1: payload | ...        each begins at a multiple of 64 bytes

No message needs a header: only the number of samples may differ from one to the next (the last batch of an evaluation is smaller), and both ends
know it. A tensor lies in a message as the executor sends it: as it is, in bfloat16, or in int8 with one float32 scale; integers are never encoded.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Literal, NamedTuple

from attrs import frozen

from petra_graph.spec.model import PrecisionSpec, StoredDtype

ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("int8", "uint8", "bool"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}
FLOATING = ("float64", "float32", "bfloat16", "float16")


def encoded_dtype(stored: StoredDtype, own: str) -> str:
    """Return the type in which the elements of a tensor of type `own` are stored."""
    return own if stored == "as-streams" or own not in FLOATING else stored


_ALIGNMENT_BYTES = 64
IMAGE_DIMENSIONS = 4


class StreamType(NamedTuple):
    """Shape, without the batch dimension, and element type of one stream, as a network in float32 returns it."""

    shape: tuple[int, ...]
    dtype: str


@frozen(kw_only=True)
class TensorLayout:
    """One tensor of a message; its shape is without the batch dimension, `stored` is the element type in the message."""

    shape: tuple[int, ...]
    dtype: str
    stored: str
    channels_last: bool
    per_sample: bool = True

    @property
    def scaled(self) -> bool:
        """Whether a float32 scale comes with the payload."""
        return self.stored == "int8" != self.dtype

    def gradient(self) -> "TensorLayout":
        """Return the layout of this stream's gradient: of an integer stream an empty tensor, which the receiver does not read."""
        if self.dtype in FLOATING:
            return self
        return TensorLayout(shape=(0,), dtype=self.dtype, stored=self.dtype, channels_last=False, per_sample=False)


WEIGHT = TensorLayout(shape=(1,), dtype="float64", stored="float64", channels_last=False, per_sample=False)
"""The weight of a micro-batch's targets, the last tensor of every backward message."""


class Extent(NamedTuple):
    """The place of a tensor within a message: an offset in bytes, and strides in elements."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
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
        """Of all tensors and scales of a full message, without alignment."""
        return sum(one.end - one.offset for pair in self.extents(self.samples)[0] for one in pair)

    @property
    def most_bytes(self) -> int:
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


# --- channels ---

Direction = Literal["forward", "backward"]
"""Also the operation at whose end a message leaves, and the one that reads it."""
NEIGHBOUR_CAPACITY = 2
"""Capacity between stages whose depths differ by at most two: one message is written while another one is read."""


class Edge(NamedTuple):
    """A connection of the graph: forwards streams one way, gradients (and activations) the other."""

    producer: str
    consumer: str


class ChannelKey(NamedTuple):
    """One direction of an edge between two stages."""

    edge: Edge
    direction: Direction

    def __str__(self) -> str:
        arrow = "->" if self.direction == "forward" else "<-"
        return f"{self.edge.producer} {arrow} {self.edge.consumer}"


@frozen
class Channel:
    """All properties of a channel, known before a process starts."""

    key: ChannelKey
    sender: int
    receiver: int
    training: MessageLayout
    evaluation: MessageLayout | None
    """None for a backward channel, which carries nothing in an evaluation."""
    capacity: int

    def __str__(self) -> str:
        return str(self.key)

    @property
    def slot_bytes(self) -> int:
        """Bytes of the largest message in memory, rounded up so that slots in a row are aligned."""
        evaluation = 0 if self.evaluation is None else self.evaluation.most_bytes
        return aligned(max(1, self.training.most_bytes, evaluation))


def capacity(producer_depth: int, consumer_depth: int) -> int:
    """Return the number of messages that each channel of an edge between two stages holds, with which no stage ever waits for room."""
    # The producer is at most depth(producer) - depth(consumer) + 1 messages ahead: it has begun the forwards up to m + depth(producer)
    # when its backward of m comes next, which is after the consumer's backward of m - 1, and so after the consumer's forward of
    # m + depth(consumer) - 2. The same holds on the way back.
    ahead = producer_depth - consumer_depth
    return NEIGHBOUR_CAPACITY if ahead <= NEIGHBOUR_CAPACITY else ahead + 1

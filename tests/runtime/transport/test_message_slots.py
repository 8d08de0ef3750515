"""Messages lie in memory as both ends know beforehand, and come out as they went in."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.executor.encoded_tensors import EncodedTensor, decode, encode
from petra_graph.program.message_layout import MessageLayout, StreamType, stream_layouts
from petra_graph.runtime.transport.channel import read_message, write_message
from petra_graph.spec.model import PrecisionSpec

SHAPES = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3)
STORED = st.sampled_from(["as-streams", "float32", "bfloat16", "float16", "int8"])


@given(SHAPES, STORED, st.integers(1, 5), st.sampled_from(["float32", "float64"]), st.booleans())
def test_what_is_written_is_read(shapes, stored, samples, compute, channels_last):
    layout = "channels-last" if channels_last else "contiguous"
    precision = PrecisionSpec(compute=compute, memory_format=layout)
    dtype = getattr(torch, compute)
    message = MessageLayout(tensors=stream_layouts([StreamType(s, "float32") for s in shapes], precision, stored))
    streams = [torch.randn(samples, *shape, dtype=dtype) for shape in shapes]
    settled = [
        s.contiguous(memory_format=torch.channels_last) if channels_last and s.dim() == 4 else s for s in streams
    ]
    sent = encode(tuple(settled), stored)
    memory = torch.zeros(message.extents(samples)[1], dtype=torch.uint8)
    assert write_message(message, memory, sent) == memory.numel()
    came = read_message(message, memory, samples)
    for one, other in zip(sent, came, strict=True):
        assert isinstance(one, EncodedTensor) == isinstance(other, EncodedTensor)
    for one, other in zip(decode(sent), decode(came), strict=True):
        assert one.dtype == other.dtype == dtype
        assert torch.equal(one, other)


def test_tensors_begin_where_vector_instructions_like_it():
    message = MessageLayout(
        tensors=stream_layouts([StreamType((n,), "float32") for n in (3, 5)], PrecisionSpec(), "as-streams")
    )
    memory = torch.zeros(message.extents(2)[1], dtype=torch.uint8)
    one, other = read_message(message, memory, 2)
    assert (other.data_ptr() - one.data_ptr()) % 64 == 0
    assert message.extents(1)[1] <= message.extents(2)[1] < message.extents(100)[1]

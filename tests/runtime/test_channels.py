"""Channels keep their order and what was sent; messages are copied out, so that nothing a stage keeps can stall one."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.executor.encoded import EncodedTensor, decode, encode
from petra_graph.program.channels import MessageLayout, StreamType, stream_layouts
from petra_graph.runtime.channels import read_message, shared_memory_receiver, shared_memory_sender, write_message
from petra_graph.runtime.system import Waker
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


def test_messages_come_in_their_order_whatever_happens_to_what_was_sent_and_to_what_was_received():
    """A block, a hook or a cycle that kept two inputs took both slots of a channel for ever."""
    message = MessageLayout(
        tensors=stream_layouts([StreamType((4,), "float32")], PrecisionSpec(), "as-streams"), samples=2
    )
    receiver, address = shared_memory_receiver(2, message.most_bytes, Waker())
    sender = shared_memory_sender(address, Waker())
    for end in (sender, receiver):
        end.begin([(message, 2)] * 100)
    kept = []
    for number in range(20):
        assert sender.ready()
        sent = (torch.full((2, 4), float(number)),)
        sender.send(sent)
        sent[0].zero_()  # it is the sender's own again
        assert receiver.ready()
        kept.append(receiver.receive()[0])
    assert [one.unique().tolist() for one in kept] == [[number] for number in range(20)]
    for _ in range(2):
        assert sender.ready()
        sender.send(sent)
    assert not sender.ready(), "both slots have a message"

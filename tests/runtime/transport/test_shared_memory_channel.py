"""A channel in shared memory: both ends in this process, which they cannot tell."""

from __future__ import annotations

import gc

import pytest
import torch

from petra_graph.errors import RunFailed
from petra_graph.program.message_layout import MessageLayout, StreamType, stream_layouts
from petra_graph.runtime.control.waiting import Waker
from petra_graph.runtime.transport import shared_memory_channel
from petra_graph.runtime.transport.shared_memory_channel import SharedMemoryReceiver, SharedMemorySender
from petra_graph.spec.model import PrecisionSpec

MESSAGE = MessageLayout(tensors=stream_layouts([StreamType((4,), "float32")], PrecisionSpec(), "as-streams"), samples=2)


@pytest.fixture
def ends():
    bells = Waker(), Waker()
    receiver = SharedMemoryReceiver(2, MESSAGE.most_bytes, bells[1])
    sender = SharedMemorySender(receiver.address, bells[0])
    sender.begin([(MESSAGE, 2)] * 100)
    receiver.begin([(MESSAGE, 2)] * 100)
    return sender, receiver, bells


def message(value: float) -> tuple[torch.Tensor]:
    return (torch.full((2, 4), value),)


def test_messages_come_in_the_order_in_which_they_were_sent(ends):
    sender, receiver, _ = ends
    for number in range(20):
        assert sender.has_room()
        sender.send(message(number))
        assert receiver.ready()
        assert receiver.receive()[0].unique().tolist() == [number]


def test_a_slot_is_taken_for_as_long_as_anybody_refers_to_it(ends):
    sender, receiver, _ = ends
    sender.send(message(1))
    sender.send(message(2))
    assert not sender.has_room()
    assert receiver.ready()
    (first,) = receiver.receive()
    part = first[0, :2]
    assert not sender.has_room()
    del first
    gc.collect()
    assert not sender.has_room(), "a view of it is still there"
    assert part.tolist() == [1, 1]
    del part
    gc.collect()
    assert sender.has_room()


def test_what_was_sent_is_the_senders_own_again(ends):
    sender, receiver, _ = ends
    sent = message(3)
    sender.send(sent)
    sent[0].zero_()
    assert receiver.ready()
    assert receiver.receive()[0].unique().tolist() == [3]


def test_more_memory_than_there_is_is_refused_and_not_allocated(monkeypatch):
    """The system would end processes instead of refusing."""
    monkeypatch.setattr(shared_memory_channel.os, "posix_fallocate", lambda *_: pytest.fail("it allocates"))
    with pytest.raises(RunFailed, match="no shared memory for 2 messages of"):
        SharedMemoryReceiver(2, 1 << 60, Waker())

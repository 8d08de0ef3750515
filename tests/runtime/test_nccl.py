"""A channel from device to device: both ends in this process, over a group whose messages pass when both ends have enqueued them."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from petra_graph.program.message_layout import WEIGHT, MessageLayout, StreamType, stream_layouts
from petra_graph.runtime import nccl
from petra_graph.runtime.nccl import DevicePeer, DeviceReceiver, DeviceSender
from petra_graph.spec.model import PrecisionSpec
from tests.support.device_fabric import Fabric, HostChannel
from tests.support.pipelines import CHAIN, pipeline

STREAMS = stream_layouts([StreamType((4,), "float32")], PrecisionSpec(), "as-streams")
MESSAGE = MessageLayout(tensors=STREAMS, samples=2)
WEIGHTED = MessageLayout(tensors=(*STREAMS, WEIGHT), samples=2)
CAPACITY = 2


class Lost(Exception):
    """The other end does not answer."""


def lost(error):
    raise Lost from error


@pytest.fixture
def ends(monkeypatch):
    fabric = Fabric()
    monkeypatch.setattr(nccl, "dist", fabric)
    channel = next(iter(pipeline(CHAIN, (8,), batch=2).programs[0].channels))
    channel = evolve(channel, training=WEIGHTED, evaluation=MESSAGE, capacity=CAPACITY)
    peer = DevicePeer(rank=0, group=fabric.group(), device=torch.device("cpu"), lost=lost)
    host = HostChannel(CAPACITY)
    sender, receiver = DeviceSender(peer, channel, host), DeviceReceiver(peer, channel, host)
    for end in (sender, receiver):
        end.begin([(MESSAGE, 2)] * 100)
    return sender, receiver, fabric


def message(value: float, samples: int = 2) -> tuple[torch.Tensor]:
    return (torch.full((samples, 4), value),)


def test_there_is_room_for_what_the_receiver_has_enqueued(ends):
    """A sender with room waits for no message whose receive is still to be enqueued: the group would refuse to wait."""
    sender, receiver, fabric = ends
    host, received = sender._announcements, []
    host._hand_over = lambda act: (received.append(len(fabric.groups[0].received)), act())
    for number in range(CAPACITY):
        sent = message(number)
        sender.send(sent)
        sent[0].zero_()  # it is the sender's own again
    assert not sender.has_room()
    kept = [receiver.receive()]
    assert received[-1] == 2, "room is given when the receive is enqueued, behind the byte that connected"
    assert sender.has_room(), "though the message is still used"
    sender.send(message(CAPACITY))
    assert not sender.has_room()
    kept += [receiver.receive() for _ in range(CAPACITY)]
    assert [one.unique().tolist() for (one,) in kept] == [[number] for number in range(CAPACITY + 1)]


def test_the_weight_of_targets_goes_from_host_to_host(ends):
    sender, receiver, fabric = ends
    for end in (sender, receiver):
        end.begin([(WEIGHTED, 2)])
    sender.send((*message(1), torch.tensor([0.75], dtype=torch.float64)))
    tensor, weight = receiver.receive()
    assert (tensor.unique().tolist(), weight.tolist()) == ([1], [0.75])
    assert sender.has_room()
    assert fabric.bytes_sent[-1] == MESSAGE.most_bytes, "the device's part has no weight"


def test_a_smaller_batch_of_an_evaluation(ends):
    sender, receiver, _ = ends
    receiver.begin([(MESSAGE, 2), (MESSAGE, 1)])
    for samples in (2, 1):
        sender.send(message(samples, samples))
        assert receiver.receive()[0].shape == (samples, 4)


def test_what_torch_raises_is_that_the_peer_is_lost(ends):
    sender, receiver, fabric = ends
    sender.send(message(1))
    fabric.broken = True
    for act in (lambda: sender.send(message(2)), receiver.receive):
        with pytest.raises(Lost):
            act()

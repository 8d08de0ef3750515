"""Both ends of a channel from device to device, in this process. `test_same_bits` has whole trainings over such channels."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from petra_graph.program.message_layout import WEIGHT, MessageLayout, StreamType, stream_layouts
from petra_graph.runtime import nccl
from petra_graph.runtime.nccl import DevicePeer, DeviceReceiver, DeviceSender
from petra_graph.spec.model import PrecisionSpec
from tests.support.pipelines import CHAIN, pipeline
from tests.support.strict_transport import Fabric, HostChannel

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
        end.begin([(WEIGHTED, 2)] * 100)
    return sender, receiver, fabric


def message(value: float, samples: int = 2) -> tuple[torch.Tensor]:
    return (torch.full((samples, 4), value),)


def test_the_weight_of_targets_goes_from_host_to_host(ends):
    sender, receiver, fabric = ends
    sender.send((*message(1), torch.tensor([0.75], dtype=torch.float64)))
    tensor, weight = receiver.receive()
    assert (tensor.unique().tolist(), weight.tolist()) == ([1], [0.75])
    assert fabric.bytes_sent[-1] == MESSAGE.most_bytes, "the device's part has no weight"


def test_what_torch_raises_is_that_the_peer_is_lost(ends):
    sender, receiver, fabric = ends
    weighed = (*message(1), torch.ones(1, dtype=torch.float64))
    sender.send(weighed)
    fabric.broken = True
    for act in (lambda: sender.send(weighed), receiver.receive):
        with pytest.raises(Lost):
            act()

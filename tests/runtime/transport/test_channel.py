"""Channels keep their order, and moving leaves alone what is where it should be."""

from __future__ import annotations

import torch

from petra_graph.executor.encoded_tensors import encode
from petra_graph.runtime.transport.channel import moved


def test_what_goes_to_a_gpu_goes_through_pinned_memory(monkeypatch):
    """Torch's own copies to a GPU are stood in for."""
    steps = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: (steps.append("pinned"), tensor)[1])
    monkeypatch.setattr(torch.Tensor, "to", lambda _, device, **how: steps.append((device.type, how)))
    moved((torch.zeros(2), torch.zeros(2, device="meta")), torch.device("cuda:0"))
    assert steps == ["pinned", ("cuda", {"non_blocking": True}), ("cuda", {"non_blocking": True})]


def test_an_encoded_message_moves_as_it_is():
    meta = torch.device("meta")
    value, integers = moved(encode((torch.zeros(2), torch.arange(2)), "int8"), meta)
    assert (value.payload.dtype, value.payload.device, value.scale.device) == (torch.int8, meta, meta)
    assert integers.device == meta


def test_layout_moves_along():
    stream = torch.zeros(2, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    (found,) = moved((stream,), torch.device("meta"))
    assert found.is_contiguous(memory_format=torch.channels_last)

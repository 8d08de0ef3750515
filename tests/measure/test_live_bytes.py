"""Live bytes follow storages, not tensors, on either device."""

from __future__ import annotations

import pytest
import torch

from petra_graph.measure.tally import LiveBytes, distinct_bytes

DEVICES = ["cpu", "meta"]


@pytest.mark.parametrize("device", DEVICES)
def test_a_storage_counts_from_its_making_to_its_end(device):
    with LiveBytes() as live:
        one = torch.zeros(10, device=device)
        assert live.live == 40
        two = one + 1
        assert live.live == 80
        del one
        assert live.live == 40
        del two
    assert (live.live, live.peak) == (0, 80)


@pytest.mark.parametrize("device", DEVICES)
def test_views_and_changes_in_place_are_free(device):
    with LiveBytes() as live:
        whole = torch.zeros(10, device=device)
        kept = (whole[:5], whole.view(2, 5), whole.add_(1))
        assert live.live == 40
        del whole
        assert live.live == 40
        del kept
    assert (live.live, live.peak) == (0, 40)


def test_a_graph_lives_until_it_is_differentiated():
    x = torch.zeros(10, requires_grad=True)
    with LiveBytes() as live:
        y = x.exp().exp().sum()
        held = live.live
        y.backward()
        assert live.live < held


def test_shared_memory_is_one():
    one = torch.zeros(4)
    assert distinct_bytes([one, one.view(2, 2), torch.zeros(2)]) == 24

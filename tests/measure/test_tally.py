"""FLOPs are torch's own count; traffic is what kernels read and write."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from petra_graph.measure.meta_kernels import NotOnMeta
from petra_graph.measure.tally import Tally


def convolved():
    x = torch.zeros(2, 3, 8, 8, requires_grad=True)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5))
    return lambda: net(x).sum().backward()


def attended():
    q = torch.zeros(2, 2, 6, 4, requires_grad=True)
    return lambda: functional.scaled_dot_product_attention(q, q, q).sum().backward()


@pytest.mark.parametrize(("work", "device"), [(convolved, "cpu"), (convolved, "meta"), (attended, "cpu")])
def test_flops_are_those_of_torch(work, device):
    with torch.device("cpu"):
        run = work()
        with FlopCounterMode(display=False) as counter:
            run()
    with torch.device(device):
        run = work()
        with Tally() as tally:
            run()
    assert tally.lap().flops == counter.get_total_flops() > 0


def test_attention_is_not_for_the_meta_device():
    with torch.device("meta"):
        run = attended()
    with Tally(), pytest.raises(NotOnMeta):
        run()


def test_traffic_is_inputs_and_outputs_of_what_is_no_view():
    with Tally() as tally:
        x = torch.zeros(10)
        assert tally.lap().traffic_bytes == 40
        x.view(2, 5)
        torch.empty(100)
        assert tally.lap().traffic_bytes == 0
        y = x + x
        assert tally.lap().traffic_bytes == 120
        y.add_(1)
        assert tally.lap().traffic_bytes == 80


def test_laps_begin_anew():
    with Tally() as tally:
        x = torch.zeros(10)
        first = tally.lap()
        y = x + 1
        del y
        second = tally.lap()
        del x
        third = tally.lap()
    assert (first.working_bytes, first.left_bytes) == (40, 40)
    assert (second.working_bytes, second.left_bytes) == (40, 0)
    assert (third.working_bytes, third.left_bytes) == (0, -40)

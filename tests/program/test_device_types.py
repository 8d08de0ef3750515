from __future__ import annotations

import pytest

from petra_graph.program.device_types import DEVICE_TYPES, Link


def test_a_message_takes_the_latency_and_its_bytes():
    assert Link(latency_seconds=0.5, bytes_per_second=100).seconds(150) == 2.0


@pytest.mark.parametrize("name", DEVICE_TYPES)
def test_bfloat16_is_no_slower_and_float64_half_as_fast(name):
    device = DEVICE_TYPES[name]
    assert device.name == name
    assert device.flops_per_second("bfloat16") >= device.flops_per_second("float32")
    assert device.flops_per_second("float64") == device.flops_per_second("float32") / 2

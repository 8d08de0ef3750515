from __future__ import annotations

import pytest

from petra_graph.program.device_types import DEVICE_TYPES


@pytest.mark.parametrize("name", DEVICE_TYPES)
def test_bfloat16_is_no_slower_and_float64_half_as_fast(name):
    device = DEVICE_TYPES[name]
    assert device.name == name
    assert device.flops_per_second("bfloat16") >= device.flops_per_second("ieee")
    assert device.flops_per_second("float64") == device.flops_per_second("ieee") / 2


@pytest.mark.parametrize(
    ("name", "teraflops"), {"cpu": 0.1, "v100": 15.7, "rtx4090": 82.6, "a100-40gb": 156.0, "h100": 494.5}.items()
)
def test_tf32_has_half_of_bfloat16_s_rate_as_data_sheets_say(name, teraflops):
    assert DEVICE_TYPES[name].flops_per_second("tf32") == pytest.approx(teraflops * 1e12, rel=0.01)

"""Tables of plans as JSON documents, made without planner: numbers are plausible."""

from __future__ import annotations

from typing import Any

import pytest

Document = dict[str, Any]


@pytest.fixture
def comparison() -> Document:
    """Methods on one network; one of them has no plan."""
    whole: dict[str, Any] = {
        "memory_total": 45 * 2**30,
        "memory_peak": 9 * 2**30,
        "saving": 0.0,
        "paper_total": 44_450_000_000,
        "paper_saving": 0.0,
        "staleness": 17.0,
        "channel_bytes": 36 * 2**20,
    }
    whole |= {
        "flops": 3 * 10**11,
        "seconds_per_micro_batch": 0.0409,
        "samples_per_second": 1565.0,
        "speedup": 3.0,
        "fits": None,
        "note": "",
    }
    common = {
        "keep": None,
        "replicas": 1,
        "devices": 4,
        "accumulation": 8,
        "unbeaten": False,
        "set": ['method.name = "petra"'],
    }
    rows = [
        common | {"method": "pipedream", "schedule": "lockstep"} | whole,
        common | {"method": "petra", "schedule": "lockstep", "unbeaten": True} | whole | {"memory_total": 20 * 2**30, "memory_peak": 3 * 2**30, "saving": 0.543, "paper_total": 20_330_000_000, "paper_saving": 0.543, "flops": 4 * 10**11},
        common | {"method": "petra", "schedule": "1f1b", "unbeaten": True} | whole | {"memory_total": 12 * 2**30, "saving": 0.733, "staleness": 8.5},
        common | {"method": "backprop", "schedule": "sequential", "replicas": 4} | dict.fromkeys(whole) | {"note": "needs 80 GiB on cuda:0, which has 40 GiB: use more devices"},
    ]  # fmt: skip
    return {
        "name": "revnet50_imagenet",
        "micro_batch": 64,
        "rows": rows,
        "recommended": 2,
        "speedup_over": "one device alone",
    }


@pytest.fixture
def scaling() -> Document:
    """Throughput by device count."""
    rows = [
        {
            "devices": devices,
            "stages": min(18, devices),
            "samples_per_second": 100 * devices * 0.9**power,
            "speedup": devices * 0.9**power,
            "efficiency": 0.9**power,
            "memory_peak": 9 * 2**30 // devices,
            "fill_seconds": 0.04 * devices,
            "staleness": min(17, devices - 1) / 2,
            "bytes_per_link": 36 * 2**20 if devices > 1 else 0,
            "replicas": max(1, devices // 18),
        }
        for power, devices in enumerate((1, 2, 4, 8, 16, 1024))
    ]
    return {"name": "revnet50_imagenet", "rows": rows}

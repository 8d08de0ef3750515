"""What the processes of a run have measured, as its summary has it."""

from __future__ import annotations

from typing import Any

MIB = 2**20


def operation(count: int, seconds: float) -> dict[str, Any]:
    return {"operations": count, "seconds": seconds}


def process(rank: int, *stages: tuple[int, dict[str, Any]], grown: int = 0) -> dict[str, Any]:
    figures = {"rank": rank, "training_seconds": 10.0, "cuda_peak_bytes": {}}
    memory = {"peak_bytes": 800 * MIB + grown, "peak_bytes_before": 800 * MIB}
    return figures | memory | {"stages": [{"stage": stage, "device": "cpu", **found} for stage, found in stages]}


MEASURED = {"forward": operation(4, 1.0), "backward": operation(4, 3.0), "update": operation(2, 1.0)}

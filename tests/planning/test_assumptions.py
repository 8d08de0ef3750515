"""What plans say of their own numbers."""

from __future__ import annotations

import json

from petra_graph.planning.assumptions import CPU_RATIO
from petra_graph.program.devices import CPU_LAUNCH_SECONDS
from tests.support import ROOT


def latest_throughput():
    return json.loads(max((ROOT / "tools" / "bench" / "results").glob("throughput-*.json")).read_text())


def test_the_factor_that_a_plan_states_is_the_one_that_was_found():
    """A plan by the data sheet now says how far such estimates hold; the benchmark's kept result must say the same."""
    medians = [row["predicted by the data sheet / measured"]["median"] for row in latest_throughput()["rows"]]
    found = min(medians), max(medians)
    assert tuple(round(ratio, 1) for ratio in found) == CPU_RATIO


def test_a_launch_takes_on_a_cpu_what_was_measured():
    measured = latest_throughput()["microseconds of an operation with no samples"]
    assert measured["least"] <= 1e6 * CPU_LAUNCH_SECONDS <= measured["largest"]

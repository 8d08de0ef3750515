"""What plans say of their own numbers."""

from __future__ import annotations

import json

from petra_graph.planning.advice import CPU_RATIO, PROFILE_RATIO
from petra_graph.program.device_types import OPERATION_SECONDS
from tests.support import ROOT


def throughputs():
    """The kept results of the benchmark's latest day: on a quiet machine, and on one that others loaded."""
    results = list((ROOT / "tools" / "bench" / "results").glob("throughput*.json"))
    latest = max(path.stem[-10:] for path in results)
    return [json.loads(path.read_text()) | {"file": path.name} for path in results if path.stem.endswith(latest)]


def test_the_factor_that_a_plan_states_is_the_one_that_was_found():
    """A plan by the data sheet now says how far such estimates hold; the benchmark's kept result must say the same."""
    rows = [row for result in throughputs() for row in result["rows"]]
    medians = [row["predicted by the data sheet / measured"]["median"] for row in rows]
    found = min(medians), max(medians)
    assert tuple(round(ratio, 1) for ratio in found) == CPU_RATIO


def test_so_is_that_of_a_profile():
    quiet = [row for result in throughputs() for row in result["rows"] if "loaded" not in result["file"]]
    medians = [row["predicted by a profile / measured"]["median"] for row in quiet]
    assert (round(min(medians), 1), round(max(medians), 1)) == PROFILE_RATIO


def test_a_launch_takes_on_a_cpu_what_was_measured():
    measured = [result["microseconds of an operation with no samples"] for result in throughputs()]
    least, largest = min(one["least"] for one in measured), max(one["largest"] for one in measured)
    assert least <= 1e6 * OPERATION_SECONDS["cpu"] <= largest

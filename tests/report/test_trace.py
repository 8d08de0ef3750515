"""The trace: the format's keys, and the blocks of the timeline."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from petra_graph.report.trace import trace
from tests.support.plan_documents import as_plan, branches, hostile, three_stages

KEYS = {
    "M": {"name", "ph", "pid", "tid", "args"},
    "X": {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"},
}


@pytest.mark.parametrize("plan", [three_stages, branches, hostile])
def test_blocks(plan):
    document = plan()
    events = json.loads(trace(as_plan(document)))["traceEvents"]
    assert all(set(event) == KEYS[event["ph"]] and isinstance(event["pid"], int) for event in events)
    blocks = [event for event in events if event["ph"] == "X"]
    assert [event["ts"] / 1e6 for event in blocks] == pytest.approx([one["start"] for one in document["timeline"]])
    names = Counter(event["name"] for event in events if event["ph"] == "M")
    assert names["process_name"] == len(document["devices"])
    assert names["thread_name"] == len(document["stages"])

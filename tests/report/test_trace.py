"""The trace: the format's keys, the blocks of the timeline, and an arrow for each message."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from petra_graph.report import trace as module
from petra_graph.report.trace import trace
from tests.support.plan_documents import branches, hostile, three_stages

KEYS = {
    "M": {"name", "ph", "pid", "tid", "args"},
    "X": {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"},
    "s": {"name", "cat", "ph", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "ph", "id", "pid", "tid", "ts", "bp"},
}


@pytest.mark.parametrize("plan", [three_stages, branches, hostile])
def test_blocks_and_arrows(plan):
    document = plan()
    events = json.loads(trace(document))["traceEvents"]
    assert all(set(event) == KEYS[event["ph"]] and isinstance(event["pid"], int) for event in events)
    blocks = [event for event in events if event["ph"] == "X"]
    assert [event["ts"] / 1e6 for event in blocks] == pytest.approx([one["start"] for one in document["timeline"]])
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys() != set()
    assert all(starts[at]["ts"] <= ends[at]["ts"] + 1e-3 for at in starts)
    names = Counter(event["name"] for event in events if event["ph"] == "M")
    assert names["process_name"] == len(document["devices"])
    assert names["thread_name"] == len(document["stages"])


def test_many_blocks_have_no_arrows(monkeypatch):
    monkeypatch.setattr(module, "_MOST_WITH_ARROWS", 3)
    assert '"ph":"s"' not in trace(three_stages())

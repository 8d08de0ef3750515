"""The trace: the format's keys, and the same blocks as the timeline."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from petra_graph_report.plan.trace_events import trace, trace_document

from tests.support.plan_documents import branches, hostile, overlapped, revnet50, three_stages

KEYS = {
    "M": {"name", "ph", "pid", "tid", "args"},
    "X": {"name", "cat", "ph", "pid", "tid", "ts", "dur", "cname", "args"},
    "s": {"name", "cat", "ph", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "ph", "id", "pid", "tid", "ts", "bp"},
}
SNAPSHOT = Path(__file__).parent / "snapshots" / "small_trace.json"
PLANS = [three_stages, branches, revnet50, hostile, overlapped]


def test_what_is_written_is_what_was_looked_at():
    assert trace(three_stages()) == SNAPSHOT.read_text(encoding="utf-8")


def of(events, phase):
    return [event for event in events if event["ph"] == phase]


@pytest.mark.parametrize("plan", PLANS)
def test_events_have_the_formats_keys(plan):
    made = json.loads(trace(plan()))
    for event in made["traceEvents"]:
        assert set(event) == KEYS[event["ph"]]
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
    assert made["displayTimeUnit"] == "ms"


@pytest.mark.parametrize("plan", PLANS)
def test_every_block_is_there_once_in_microseconds(plan):
    document = plan()
    blocks = of(trace_document(document)["traceEvents"], "X")
    traced = [(e["args"]["verb"], e["args"]["stage"], e["args"]["micro_batch"]) for e in blocks]
    assert traced == [(b["verb"], b["stage"], b["micro_batch"]) for b in document["timeline"]]
    for event, block in zip(blocks, document["timeline"], strict=True):
        assert event["ts"] == pytest.approx(block["start"] * 1e6, abs=1e-3)
        assert event["dur"] == pytest.approx((block["end"] - block["start"]) * 1e6, abs=1e-3)


@pytest.mark.parametrize("plan", PLANS)
def test_blocks_of_a_thread_never_overlap(plan):
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in of(trace_document(plan())["traceEvents"], "X"):
        threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for blocks in threads.values():
        for before, after in pairwise(sorted(blocks)):
            assert after[0] >= before[1] - 0.01


@pytest.mark.parametrize("plan", PLANS)
def test_every_process_and_thread_has_a_name(plan):
    document = plan()
    events = trace_document(document)["traceEvents"]
    used = {(event["pid"], event["tid"]) for event in of(events, "X")}
    names = of(events, "M")
    assert used <= {(event["pid"], event["tid"]) for event in names if event["name"] == "thread_name"}
    processes = [event["args"]["name"] for event in names if event["name"] == "process_name"]
    assert processes == [device["name"] for device in document["devices"]]


@pytest.mark.parametrize("plan", PLANS)
def test_arrows_join_blocks_of_one_micro_batch(plan):
    events = trace_document(plan())["traceEvents"]
    blocks = of(events, "X")

    def block_at(end):
        """The block that a viewer binds an arrow's end to: the one of its thread around it."""
        (found,) = (
            b
            for b in blocks
            if (b["pid"], b["tid"]) == (end["pid"], end["tid"])
            and b["cat"] == end["name"]
            and b["ts"] <= end["ts"] < b["ts"] + b["dur"]
        )
        return found["args"]["micro_batch"], found["args"]["stage"]

    starts, ends = of(events, "s"), of(events, "f")
    assert len(starts) == len(ends) > 0
    assert max(Counter(event["id"] for event in starts).values()) == 1
    for start, end in zip(starts, ends, strict=True):
        assert start["id"] == end["id"]
        (sent, sender), (read, reader) = block_at(start), block_at(end)
        assert sent == read
        assert sender < reader if start["name"] == "forward" else sender > reader


def test_forward_and_backward_at_once_have_threads_of_their_own():
    names = [e["args"]["name"] for e in trace_document(overlapped())["traceEvents"] if e["name"] == "thread_name"]
    assert names[:2] == ["stage 1: stem, down1, layer1.0-1, forward", "stage 1: stem, down1, layer1.0-1, backward"]


def test_a_trace_that_is_too_large_for_arrows_says_so(two_hundred):
    made = trace_document(two_hundred)
    assert not of(made["traceEvents"], "s")
    assert made["otherData"]["arrows"] == "left out: there are more than 20,000 blocks"

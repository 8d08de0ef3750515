"""A plan on terminals: six answers, the tables that are short or asked for, the warnings; and what a run measured beside it.

After a change of whole outputs that is meant: `python -m tests.report.test_plan_text`, then read the diff.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

from petra_graph.errors import printable
from petra_graph.report.plan_text import answers, plan_text
from petra_graph.report.planned_and_measured import compare_with_plan
from petra_graph.report.trace import trace
from tests.support import ROOT
from tests.support.plan_documents import as_plan, branches, hostile, three_stages

FOLDER = ROOT / "tests" / "report" / "snapshots"
SNAPSHOTS = {
    "small_verbose.txt": lambda: plan_text(as_plan(three_stages()), verbose=True),
    "branches.txt": lambda: plan_text(as_plan(branches())),
}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_whole_outputs(name):
    assert SNAPSHOTS[name]() + "\n" == (FOLDER / name).read_text(encoding="utf-8")


def test_a_plan_says_its_speed_and_how_sure_it_is():
    document = three_stages()
    document["timing"] |= {"samples_per_second": 20_000.0, "speedup": 1.17}
    document["run"] = {"epochs": 2, "seconds": 60.0, "epoch_seconds": 30.0, "micro_batches_per_epoch": 4}
    found = dict(answers(as_plan(document)))
    assert found["speed"] == "20,000 samples/s; 1.17 x plain backpropagation on one cpu; 60 s for 2 epochs"
    assert found["how sure"] == document["certainty"]
    document["timing"]["exact"] = False
    assert "; about 1.17 x" in dict(answers(as_plan(document)))["speed"]


@pytest.mark.parametrize("plan", [three_stages, branches, hostile])
def test_nothing_is_wider_than_a_terminal_nor_controls_it(plan):
    for more in ({}, {"verbose": True}):
        lines = plan_text(as_plan(plan()), **more).splitlines()
        assert max(map(len, lines)) <= 80
        assert printable("".join(lines)) == "".join(lines)


TRACED = {"M": {"name", "ph", "pid", "tid", "args"}, "X": {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"}}


@pytest.mark.parametrize("plan", [three_stages, branches, hostile])
def test_a_trace_has_the_formats_keys_and_the_blocks_of_the_timeline(plan):
    document = plan()
    events = json.loads(trace(as_plan(document)))["traceEvents"]
    assert all(set(event) == TRACED[event["ph"]] and isinstance(event["pid"], int) for event in events)
    blocks = [event["ts"] / 1e6 for event in events if event["ph"] == "X"]
    assert blocks == pytest.approx([one["start"] for one in document["timeline"]])
    names = Counter(event["name"] for event in events if event["ph"] == "M")
    assert (names["process_name"], names["thread_name"]) == (len(document["devices"]), len(document["stages"]))


# --- what a run measured ---


MIB = 2**20


def operation(count, seconds):
    return {"operations": count, "seconds": seconds}


def process(rank, *stages, grown=0):
    figures = {"rank": rank, "training_seconds": 10.0, "cuda_peak_bytes": {}}
    memory = {"peak_bytes": 800 * MIB + grown, "peak_bytes_before": 800 * MIB}
    return figures | memory | {"stages": [{"stage": stage, "device": "cpu", **found} for stage, found in stages]}


MEASURED = {"forward": operation(4, 1.0), "backward": operation(4, 3.0), "update": operation(2, 1.0)}


def test_replicas_of_a_stage_count_together():
    replicas = [process(0, (1, MEASURED), (2, {})), process(1, (1, MEASURED))]
    first, second = compare_with_plan(None, 2, replicas)["stages"]
    assert {verb: one["measured"] for verb, one in first["seconds"].items()} == {
        "forward": 0.25,
        "backward": 0.75,
        "update": 0.5,
    }
    assert second["seconds"]["forward"] == {"planned": None, "measured": None}, "its device is not timed"


def test_compared_as_json():
    plan = three_stages()
    found = compare_with_plan(
        as_plan(plan), 3, [process(0, (1, MEASURED), (2, {}), grown=5 * MIB), process(1, (3, MEASURED))]
    )
    assert [stage["stage"] for stage in found["stages"]] == [1, 2, 3]
    forwards = [stage["seconds"]["forward"] for stage in found["stages"]]
    assert [one["planned"] for one in forwards] == [stage["seconds"]["forward"] for stage in plan["stages"]]
    assert [one["measured"] for one in forwards] == [0.25, None, 0.25]
    totals = [stage["bytes"]["total"] for stage in plan["stages"]]
    assert found["processes"] == [
        {"rank": 0, "stages": [1, 2], "bytes": {"planned": totals[0] + totals[1], "measured": 5 * MIB}},
        {"rank": 1, "stages": [3], "bytes": {"planned": totals[2], "measured": 0}},
    ]
    on_gpu = process(0, (1, {})) | {"cuda_peak_bytes": {"cuda:0": 7 * MIB}}
    assert compare_with_plan(as_plan(plan), 3, [on_gpu])["processes"][0]["bytes"]["measured"] == 7 * MIB


if __name__ == "__main__":
    for one, write in SNAPSHOTS.items():
        (FOLDER / one).write_text(write() + "\n", encoding="utf-8")

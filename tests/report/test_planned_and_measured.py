"""What a run measured of its stages and processes, beside its plan."""

from __future__ import annotations

from petra_graph.report.planned_and_measured import compare_with_plan
from tests.support.plan_documents import as_plan, three_stages

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

"""The blocks of a timeline, and the facts about them."""

from __future__ import annotations

from petra_graph.report.plan.plan_timeline import by_stage, full_from


def block(stage: int, verb: str, start: float, end: float):
    return {"stage": stage, "verb": verb, "start": start, "end": end, "micro_batch": 0, "device": "cpu"}


def plan(*blocks):
    return {"stages": [{"index": 1}, {"index": 2}], "timeline": blocks}


def test_blocks_by_stage_in_order_of_time():
    early, late = block(2, "forward", 0, 1), block(2, "backward", 1, 2)
    assert by_stage(plan(late, early)) == {1: [], 2: [early, late]}


def test_the_pipeline_is_full_when_every_stage_has_begun_a_backward():
    blocks = by_stage(plan(block(1, "forward", 0, 1), block(2, "backward", 2, 3), block(1, "backward", 5, 6)))
    assert full_from(blocks) == 5


def test_nothing():
    assert full_from(by_stage(plan())) == 0

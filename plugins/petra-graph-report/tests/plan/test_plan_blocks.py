"""The blocks of a timeline, and the facts about them."""

from __future__ import annotations

from petra_graph_report.plan.plan_blocks import end_of, overlapping, stage_edges

from petra_graph.report.plan.plan_timeline import by_stage
from tests.support.plan_documents import branches, overlapped, three_stages


def block(stage: int, verb: str, start: float, end: float):
    return {"stage": stage, "verb": verb, "start": start, "end": end, "micro_batch": 0, "device": "cpu"}


def plan(*blocks):
    return {"stages": [{"index": 1}, {"index": 2}], "timeline": blocks}


def test_the_end_is_that_of_the_latest_block():
    assert end_of(by_stage(plan(block(1, "forward", 0, 6), block(2, "backward", 2, 3)))) == 6
    assert end_of(by_stage(plan())) == 0


def test_blocks_at_once():
    assert overlapping(by_stage(plan(block(1, "forward", 0, 2), block(1, "backward", 1, 3))))
    assert not overlapping(by_stage(plan(block(1, "forward", 0, 2), block(2, "backward", 1, 3))))
    assert not overlapping(by_stage(plan(block(1, "forward", 0, 1), block(1, "backward", 1 - 1e-12, 2))))
    assert overlapping(by_stage(overlapped()))
    assert not overlapping(by_stage(three_stages()))


def test_which_stage_sends_to_which():
    assert stage_edges(branches()) == [(1, 2), (1, 3), (1, 5), (2, 4), (3, 4), (4, 5)]

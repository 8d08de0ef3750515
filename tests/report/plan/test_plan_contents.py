"""The blocks of a timeline, and the facts about them."""

from __future__ import annotations

from petra_graph.report.plan.plan_contents import by_stage, bytes_by_part, end_of, full_from, overlapping, stage_edges
from tests.support.plan_documents import branches, overlapped, three_stages


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
    assert end_of(blocks) == 6


def test_nothing():
    assert end_of(by_stage(plan())) == full_from(by_stage(plan())) == 0


def test_blocks_at_once():
    assert overlapping(by_stage(plan(block(1, "forward", 0, 2), block(1, "backward", 1, 3))))
    assert not overlapping(by_stage(plan(block(1, "forward", 0, 2), block(2, "backward", 1, 3))))
    assert not overlapping(by_stage(plan(block(1, "forward", 0, 1), block(1, "backward", 1 - 1e-12, 2))))
    assert overlapping(by_stage(overlapped()))
    assert not overlapping(by_stage(three_stages()))


def test_what_the_total_has_beyond_the_known_parts_is_other():
    counts = {"parameters": 10, "working": 5, "data": 7, "total": 22}
    assert bytes_by_part(counts) == {
        "parameters": 10,
        "gradients": 0,
        "optimizer": 0,
        "input_buffer": 0,
        "parameter_buffer": 0,
        "graphs": 0,
        "working": 5,
        "channels": 0,
        "other": 7,
    }


def test_which_stage_sends_to_which():
    assert stage_edges(branches()) == [(1, 2), (1, 3), (1, 5), (2, 4), (3, 4), (4, 5)]

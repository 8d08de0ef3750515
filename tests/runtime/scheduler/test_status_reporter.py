"""Seconds by stage and operation."""

from __future__ import annotations

from petra_graph.runtime.scheduler.status_reporter import OperationSeconds


def test_operations_of_a_stage_are_summed_by_kind():
    seconds = OperationSeconds()
    for stage, operation, taken in [(3, "forward", 1.0), (3, "backward", 2.5)] * 2 + [(2, "backward", 0.5)]:
        tally = seconds.tally(stage, operation)
        tally[0] += 1
        tally[1] += taken
    seconds.tally(2, "forward")
    assert seconds.of_stage(3) == {
        "forward": {"operations": 2, "seconds": 2.0},
        "backward": {"operations": 2, "seconds": 5.0},
    }
    assert seconds.of_stage(2) == {"backward": {"operations": 1, "seconds": 0.5}}

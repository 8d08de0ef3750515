"""Seconds by stage and operation."""

from __future__ import annotations

from petra_graph.runtime.scheduler.operation_seconds import OperationSeconds


def test_the_parts_of_a_split_backward_are_one_backward_together():
    seconds = OperationSeconds()
    for operation, taken in (("reconstruct", 1.0), ("input_gradient", 2.0), ("parameter_gradient", 4.0)) * 2:
        seconds.add(3, operation, taken)
    seconds.add(2, "backward", 0.5)
    for operation, taken in (("reconstruct", 1.0), ("backward", 3.0)):
        seconds.add(1, operation, taken)
    found = seconds.of_stage(3)
    assert found["backward"] == {"operations": 2, "seconds": 14.0}
    assert found["input_gradient"] == {"operations": 2, "seconds": 4.0}
    assert seconds.of_stage(1)["backward"] == {"operations": 1, "seconds": 4.0}
    assert seconds.of_stage(2) == {"backward": {"operations": 1, "seconds": 0.5}}

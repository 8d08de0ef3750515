"""What a process does, in words and as a failure tells it."""

from __future__ import annotations

import pytest

from petra_graph.runtime.failure import OperationStatus
from tests.support.pipelines import CHAIN, pipeline


@pytest.fixture
def doing():
    program = pipeline(CHAIN, (8,), schedule="1f1b", accumulation=2).programs[2]
    return OperationStatus(
        program=program, operation="backward", micro_batch=13, micro_batches=range(10, 30), since=0.0, channel="a <- b"
    )


def test_what_it_says(doing):
    assert str(doing) == "stage 3 (rev1), backward of micro-batch 13, waiting on a <- b"
    assert doing.record()["schedule"] == "F14 B12 U F15 [B13] U F16 B14 F17" or "[B13]" in doing.record()["schedule"]


def test_the_schedule_around_it_has_four_operations_on_both_sides(doing):
    words = doing.schedule().split()
    at = words.index("[B13]")
    assert (at, len(words) - at - 1) == (4, 4)
    assert words[at + 1] == "U"

"""What a run reads: the part of each process, and all of an evaluation."""

from __future__ import annotations

from petra_graph.training.prepare import prepare
from tests.support.runs import MICRO_BATCHES, SPEC


def test_a_process_reads_the_rows_of_its_replica_and_evaluates_all(write):
    opened = prepare(write("small.toml", SPEC), ["partition.replicas=2", "run.micro_batches=3"], processes=2).opened
    targets = opened.read_in_part("targets", 1)
    assert [(one.part, one.replica, one.replicas) for one in (targets.batches, targets.test)] == [
        ("targets", 1, 2),
        ("targets", 0, 1),
    ]
    assert len(targets.batches) == 3
    assert sum(targets.test.sizes) == len(opened.data.test)


def test_each_epoch_is_another_one_of_the_same_length(write):
    opened = prepare(write("small.toml", SPEC)).opened
    assert [(opened.epoch(number).epoch, len(opened.epoch(number))) for number in (0, 3)] == [
        (0, MICRO_BATCHES),
        (3, MICRO_BATCHES),
    ]

"""The writing thread hands its error to the thread that trains."""

from __future__ import annotations

import time

import pytest

from petra_graph.errors import RunFailed
from petra_graph.executor.checkpoint_tensors import SavedTensors
from petra_graph.training.checkpoints.checkpoint_writer import CheckpointWriter


def test_a_file_that_cannot_be_written_is_known_before_the_next_cut():
    def refuse(at, saved):
        raise RunFailed("the disk is full")

    writer = CheckpointWriter(refuse, lambda *_: None, stages=1, waits=False)
    assert writer.admit(3, 1)
    writer.put(3, SavedTensors())

    def forwards():
        for _ in range(1000):
            writer.check()
            time.sleep(0.01)

    with pytest.raises(RunFailed, match="the disk is full"):
        forwards()

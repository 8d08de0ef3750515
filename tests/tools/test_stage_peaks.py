"""A tensor belongs to the stage that made it, or that received it."""

from __future__ import annotations

import torch

from petra_graph.runtime.loop import Scheduler
from tests.support.pipelines import CHAIN, batches, pipeline
from tools.bench.stage_peaks import StagePeaks

SHAPE = (8,)


def test_between_runs_a_stage_has_its_parameters_gradients_gone_and_the_optimizers_state():
    built = pipeline(CHAIN, SHAPE, compute="float32")
    peaks = StagePeaks(built.executors)
    resident = dict(peaks.live_of)
    assert resident == {
        executor.program.index: sum(
            tensor.nbytes for block in executor.modules.values() for tensor in (*block.parameters(), *block.buffers())
        )
        for executor in built.executors
    }
    with peaks:
        Scheduler(peaks.executors).train(batches(SHAPE, 6, dtype=torch.float32), range(6), lambda _: None)
    expected = {stage: 2 * size for stage, size in resident.items()}
    expected[max(resident)] += 4  # the head keeps its loss's gradient: a one in float32
    assert {stage: peaks.live_of[stage] for stage in resident} == expected
    assert all(peaks.total[stage] > 2 * size for stage, size in resident.items())

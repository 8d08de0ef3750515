"""A pipeline that goes on from a cut holds the bits of one that was never interrupted: every method, schedule and precision.

The cuts lie in the middle of an epoch, most of them in the middle of a window, while micro-batches are in flight.
"""

from __future__ import annotations

import sys

import pytest
from attrs import define, field

from petra_graph.executor.reconstruct_recompute_stash import HeadResult
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.executor.stage_state import SavedTensors
from petra_graph.program.cut import Cut, aligned
from petra_graph.runtime.scheduler.cut_recorder import CutRecorder, restore_at_cut
from tests.support import same_bits_cases
from tests.support.same_bits_cases import (
    BATCH,
    CASES,
    EPOCHS,
    EVALUATION_BATCH,
    MICRO_BATCHES,
    TESTS,
    Case,
    Samples,
    held,
)

COMPUTED = {case.computation: case for case in CASES.values()}
EPOCH = 1
"""With the cuts; an epoch before and one after it are trained."""


@define
class InMemory:
    """Keeps copies of all stages at one cut."""

    at: int
    recorder: CutRecorder
    copies: dict[int, SavedTensors] = field(factory=dict)

    def may_pass(self, _micro_batch: int) -> bool:
        return True

    def due(self, micro_batch: int) -> bool:
        return micro_batch == self.at

    def reached(self, executor: StageExecutor, cut: Cut) -> None:
        self.recorder.reached(executor, cut, {})

    def received(self, *message: object) -> None:
        self.recorder.received(*message)


def train(case: Case, built, first: int, at: int | None = None) -> list[HeadResult]:
    """Train from an epoch on, or from a cut in it; return what the head says behind the cut."""
    said: list[HeadResult] = []
    for epoch in range(first, EPOCHS):
        micro_batches = range(epoch * MICRO_BATCHES, (epoch + 1) * MICRO_BATCHES)
        data = iter(Samples(case.shape, [BATCH] * MICRO_BATCHES, seed=epoch))
        if at is not None:
            for _ in range(at - micro_batches.start):
                next(data)
        built.runtime.train(data, micro_batches, said.append, at)
        at = None
        said += built.runtime.evaluate(
            Samples(case.shape, [EVALUATION_BATCH] * (TESTS // EVALUATION_BATCH) + [1], seed=99)
        )
    return said


def resumed(case: Case, at: int) -> tuple[dict[str, str], dict[str, str]]:
    """Train with a copy at a cut, and from that copy; return what each holds at the end."""
    built = case.built()
    copies: dict[int, SavedTensors] = {}

    def complete(found: int, saved: SavedTensors) -> None:
        assert found == at
        copies[saved.facts["index"]] = saved

    built.runtime.cuts = InMemory(at, CutRecorder(built.programs, complete))
    said = train(case, built, 0)
    assert len(copies) == len(built.programs), "every stage has passed the cut, with its messages"
    again = case.built()
    for executor in again.executors:
        restore_at_cut(copies[executor.program.index], executor, again.runtime)
    after = train(case, again, EPOCH, at)
    tail = [float(result.loss) for result in said][-len(after) :]
    return held(built.executors, tail), held(again.executors, [float(result.loss) for result in after])


@pytest.mark.parametrize("name", COMPUTED)
def test_a_cut_in_the_middle(name):
    case = COMPUTED[name]
    program = case.built().programs[0]
    at = EPOCH * MICRO_BATCHES + 2 + len(name) % 2
    uninterrupted, again = resumed(case, aligned(at, MICRO_BATCHES, program.accumulation, program.flush))
    assert again == uninterrupted


LONG = 14
"""Micro-batches of an epoch in which the deepest stage, of depth 13, comes to its backwards."""
STORED = [name for name in COMPUTED if "pipedream" in name or "delayed" in name or "lockstep" in name]


@pytest.mark.parametrize("name", STORED)
def test_a_cut_with_a_full_pipeline(name, monkeypatch):
    """Older versions of parameters are in use, of nodes without any too."""
    for module in (sys.modules[__name__], same_bits_cases):
        monkeypatch.setattr(module, "MICRO_BATCHES", LONG)
    uninterrupted, again = resumed(COMPUTED[name], EPOCH * LONG + LONG - 3)
    assert again == uninterrupted


@pytest.mark.parametrize("name", [next(name for name in COMPUTED if "lockstep" in name and "accumulation=4" in name)])
def test_every_cut_of_an_epoch(name):
    for at in range(EPOCH * MICRO_BATCHES, (EPOCH + 1) * MICRO_BATCHES):
        uninterrupted, again = resumed(COMPUTED[name], at)
        assert again == uninterrupted

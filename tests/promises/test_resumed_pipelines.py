"""A pipeline that goes on from a cut holds the bits of one that was never interrupted: every method, schedule and precision."""

from __future__ import annotations

import pytest

from petra_graph.program.cut import aligned
from petra_graph.training.resume import restore_at_cut
from tests.support import same_bits_cases
from tests.support.kept_cut import KeptCut
from tests.support.same_bits_cases import COMPUTED, MICRO_BATCHES, USUAL, Case, held, train

EPOCH = 1
"""With the cuts, most of them in the middle of a window, while micro-batches are in flight; an epoch before and one after it are trained."""


@pytest.fixture(autouse=True)
def three_epochs(monkeypatch):
    monkeypatch.setattr(same_bits_cases, "EPOCHS", 3)


def assert_cuts_change_nothing(case: Case, *cuts: int) -> None:
    """Train with a copy at each cut, and from each copy: both hold the same at the end."""
    built = case.built()
    kept = built.runtime.cuts = KeptCut(built.programs, *cuts)
    said = train(case, built.runtime)
    for at in cuts:
        copies = kept.copies_at[at]
        assert len(copies) == len(built.programs), "every stage has passed the cut, with its messages"
        again = case.built()
        for executor in again.executors:
            restore_at_cut(copies[executor.program.index], executor, again.runtime)
        after = train(case, again.runtime, EPOCH, at)
        assert held(again.executors, after) == held(built.executors, said[-len(after) :])


@pytest.mark.parametrize("name", USUAL)
def test_a_cut_in_the_middle(name):
    case = COMPUTED[name]
    program = case.built().programs[0]
    at = aligned(EPOCH * MICRO_BATCHES + 2 + len(name) % 2, MICRO_BATCHES, program.accumulation, program.flush)
    assert_cuts_change_nothing(case, at)


LONG = 14
"""Micro-batches of an epoch in which the deepest stage, of depth 13, comes to its backwards."""
STORED = [name for name in USUAL if "pipedream" in name or "delayed" in name]


@pytest.mark.parametrize("name", STORED)
def test_a_cut_with_a_full_pipeline(name, monkeypatch):
    """Older versions of parameters are in use, of nodes without any too."""
    monkeypatch.setattr(same_bits_cases, "MICRO_BATCHES", LONG)
    assert_cuts_change_nothing(COMPUTED[name], EPOCH * LONG + LONG - 3)


def test_every_cut_of_an_epoch():
    name = next(name for name in USUAL if "lockstep" in name and "accumulation=4" in name)
    assert_cuts_change_nothing(COMPUTED[name], *range(EPOCH * MICRO_BATCHES, (EPOCH + 1) * MICRO_BATCHES))

"""A pipeline that goes on from a cut holds the bits of one that was never interrupted: every method, schedule and precision.

The cuts lie in the middle of an epoch, most of them in the middle of a window, while micro-batches are in flight.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from petra_graph.program.cut import aligned
from petra_graph.training.resume import restore_at_cut
from tests.support import same_bits_cases
from tests.support.kept_cut import KeptCut
from tests.support.same_bits_cases import COMPUTED, MICRO_BATCHES, USUAL, Case, held, train

EPOCH = 1
"""With the cuts; an epoch before and one after it are trained."""
Held = dict[str, str]


@pytest.fixture(autouse=True)
def three_epochs(monkeypatch):
    monkeypatch.setattr(same_bits_cases, "EPOCHS", 3)


def resumed(case: Case, *cuts: int) -> Iterator[tuple[Held, Held]]:
    """Train with a copy at each cut, and from each copy; yield what both hold at the end."""
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
        yield held(built.executors, said[-len(after) :]), held(again.executors, after)


@pytest.mark.parametrize("name", USUAL)
def test_a_cut_in_the_middle(name):
    case = COMPUTED[name]
    program = case.built().programs[0]
    at = aligned(EPOCH * MICRO_BATCHES + 2 + len(name) % 2, MICRO_BATCHES, program.accumulation, program.flush)
    for uninterrupted, again in resumed(case, at):
        assert again == uninterrupted


LONG = 14
"""Micro-batches of an epoch in which the deepest stage, of depth 13, comes to its backwards."""
STORED = [name for name in USUAL if "pipedream" in name or "delayed" in name]


@pytest.mark.parametrize("name", STORED)
def test_a_cut_with_a_full_pipeline(name, monkeypatch):
    """Older versions of parameters are in use, of nodes without any too."""
    monkeypatch.setattr(same_bits_cases, "MICRO_BATCHES", LONG)
    for uninterrupted, again in resumed(COMPUTED[name], EPOCH * LONG + LONG - 3):
        assert again == uninterrupted


EVERY_CUT = range(EPOCH * MICRO_BATCHES, (EPOCH + 1) * MICRO_BATCHES)


@pytest.mark.parametrize("name", [next(name for name in USUAL if "lockstep" in name and "accumulation=4" in name)])
def test_every_cut_of_an_epoch(name):
    for uninterrupted, again in resumed(COMPUTED[name], *EVERY_CUT):
        assert again == uninterrupted

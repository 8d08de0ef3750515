"""A pipeline that goes on from a cut holds the bits of one that was never interrupted: every method, schedule and precision."""

import pytest

from petra_graph.program.cut import aligned
from petra_graph.training.checkpoint import restore_at_cut
from tests.support import same_bits_cases
from tests.support.kept_cut import KeptCut
from tests.support.same_bits_cases import COMPUTED, MICRO_BATCHES, USUAL, held, train

EPOCH = 1
"""With the cuts, most of them in the middle of a window, while micro-batches are in flight; an epoch before is trained."""
LONG = 14
"""Micro-batches of an epoch in which the deepest stage, of depth 13, comes to its backwards: a full pipeline."""
WHOLE = next(name for name in USUAL if "lockstep" in name and "accumulation=4" in name)
STORED = [name for name in USUAL if "pipedream" in name or "delayed" in name]
"""Older versions of parameters are in use, of nodes without any too."""
CUTS = [
    *((name, MICRO_BATCHES, [2 + at % 2]) for at, name in enumerate(USUAL)),
    *((name, LONG, [LONG - 3]) for name in STORED),
    (WHOLE, MICRO_BATCHES, list(range(MICRO_BATCHES))),
]


@pytest.mark.parametrize(("name", "micro_batches", "cuts"), CUTS)
def test_cuts_change_nothing(name, micro_batches, cuts, monkeypatch):
    """Train with a copy at each cut, and from each copy: both hold the same at the end."""
    monkeypatch.setattr(same_bits_cases, "MICRO_BATCHES", micro_batches)
    case = COMPUTED[name]
    built = case.built()
    program = built.programs[0]
    places = [aligned(EPOCH * micro_batches + cut, micro_batches, program.accumulation, program.flush) for cut in cuts]
    kept = built.runtime.cuts = KeptCut(built.programs, *places)
    said = train(case, built.runtime)
    for at in places:
        copies = kept.copies_at[at]
        assert len(copies) == len(built.programs), "every stage has passed the cut, with its messages"
        again = case.built()
        for executor in again.executors:
            restore_at_cut(copies[executor.program.index], executor, again.runtime)
        after = train(case, again.runtime, EPOCH, at)
        assert held(again.executors, after) == held(built.executors, said[-len(after) :])

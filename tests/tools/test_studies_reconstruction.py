"""The study of reconstruction errors: which measurements count, and that its specifications are valid."""

from __future__ import annotations

import pytest

from petra_graph.training.prepared_run import prepare
from tests.support import ROOT
from tools.studies.reconstruction import CHAIN, FULL, chains, errors, rows

STEPS = FULL + 10
"""In an epoch."""


def event(epoch, step, stage, value):
    return {"epoch": epoch, "step": step, "name": f"probe/reconstruction_error/stage-{stage:02}", "value": value}


def test_the_median_is_over_micro_batches_of_a_full_pipeline_after_the_first_epoch():
    first = [event(1, STEPS, 2, 9.0), {"epoch": 1, "step": STEPS, "name": "test/loss", "value": 1.0}]
    filling = [event(2, STEPS + FULL, 2, 8.0)]
    full = [event(2, STEPS + FULL + 1 + at, 2, value) for at, value in enumerate((0.1, 0.3, 0.2))]
    assert errors([*first, *filling, *full, event(2, STEPS + FULL + 1, 3, 0.5)]) == {2: 0.2, 3: 0.5}


def test_a_row_has_both_errors_and_their_ratio():
    pair = {"without": {"stages": {2: 0.4}}, "predicted": {"stages": {2: 0.1}}}
    assert list(rows({"4 stages": pair})) == [("4 stages", "2", "0.4", "0.1", "0.25")]


@pytest.mark.parametrize("name", ["4 stages, sgd, 1f1b", "12 stages, adam, lockstep"])
def test_the_chain_has_the_stages_of_its_name(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    for case, predicts in zip(dict(chains())[name], (False, True), strict=True):
        prepared = prepare(CHAIN, case.overrides)
        assert len(prepared.stages) == int(name.split()[0])
        assert prepared.checked.correction.options.predict is predicts

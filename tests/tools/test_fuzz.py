"""The fuzzer tells a refusal from what no reader may do with damaged input."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from tools.fuzz import KINDS, bent, damaged, tried
from tools.fuzz_runs import cases, made_run, read


@pytest.mark.thorough
@pytest.mark.processes
def test_damaged_specs_are_refused(tmp_path):
    total, findings = tried("specs", 0, 6.0, tmp_path)
    assert findings == []
    assert total > 20


def test_damaged_files_of_runs_are_refused(tmp_path):
    """A sample of `--kind runs`, each read by all verbs that read it."""
    whole = made_run(tmp_path)
    for case in islice(cases(random.Random(7), whole, damaged, bent), 6):
        read(whole, tmp_path / "case", case)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_makes_damaged_inputs(kind):
    made, _ = KINDS[kind](random.Random(0))
    assert len({next(made) for _ in range(20)}) > 10


def test_the_original_stays_whole():
    dice, document = random.Random(0), {"a": [1, {"b": 2}], "c": "x"}
    assert any(bent(dice, document) != document for _ in range(5))
    assert document == {"a": [1, {"b": 2}], "c": "x"}
    assert damaged(dice, b"abcdef") != b"abcdef"

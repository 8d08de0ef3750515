"""Processes and their timing change no bit: real processes, against the inline runtime.

One launch for each number of processes goes through every case of `tests.support.same_bits_cases`.
"""

from __future__ import annotations

import json
from functools import cache

import pytest

from tests.support.processes import ended, started, store
from tests.support.same_bits_cases import CASES, in_one_process

pytestmark = [pytest.mark.processes, pytest.mark.slow]
PATIENCE_SECONDS = 150


@cache
def _computed(settings: str) -> dict[str, str]:
    return in_one_process(next(case for case in CASES.values() if case.computation == settings))


def inline(name: str) -> dict[str, str]:
    """What one process holds, computed once for all cases that differ in processes alone."""
    return _computed(CASES[name].computation)


@pytest.fixture(scope="module", params=[2, 4])
def shared(request, tmp_path_factory):
    """What all processes together hold at the end of each case."""
    output = tmp_path_factory.mktemp("bits")
    with (
        store() as meeting,
        started(meeting, request.param, "-m", "tests.support.same_bits_cases", str(output)) as processes,
    ):
        for name in CASES:  # while the others are busy
            inline(name)
        ended(processes, PATIENCE_SECONDS)
    parts = [json.loads((output / f"rank{rank}.json").read_text()) for rank in range(request.param)]
    return {name: [part[name] for part in parts] for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_case(shared, name):
    alone, parts = inline(name), shared[name]
    together = {key: value for part in parts for key, value in part.items()}
    assert sum(map(len, parts)) == len(together), "every stage is hosted once"
    assert all(parts), "every process hosts one"
    assert together == alone

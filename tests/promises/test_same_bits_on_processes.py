"""Processes and their timing change no bit: real processes, against the inline runtime.

One launch for each number of processes goes through those of its cases in `tests.support.same_bits_cases` that are asked for.
"""

from __future__ import annotations

import json

import pytest

from tests.support.forks import ended, ranks
from tests.support.same_bits_cases import CASES, alone

pytestmark = [pytest.mark.processes, pytest.mark.slow]
PATIENCE_SECONDS = 150


@pytest.fixture(scope="module")
def held(request, tmp_path_factory):
    """By number of processes, what each of them holds at the end of each of its cases."""
    found = {}
    asked = [item.callspec.params["name"] for item in request.session.items if item.path == request.path]

    def of(size: int) -> dict[str, list[dict[str, str]]]:
        if size not in found:
            names = [name for name in asked if CASES[name].processes == size]
            output = tmp_path_factory.mktemp("bits")
            with ranks(*[[str(output), *names]] * size, program="tests.support.same_bits_cases:main") as running:
                for name in names:  # while the others are busy
                    alone(CASES[name].computation)
                assert ended(running, PATIENCE_SECONDS) == [0] * size, "".join(rank.said for rank in running)
            parts = [json.loads((output / f"rank{rank}.json").read_text()) for rank in range(size)]
            found[size] = {name: [part[name] for part in parts] for name in names}
        return found[size]

    return of


@pytest.mark.parametrize("name", CASES, ids=str)
def test_case(shared_folder, held, name):
    parts = held(CASES[name].processes)[name]
    together = {key: value for part in parts for key, value in part.items()}
    assert sum(map(len, parts)) == len(together), "every stage is hosted once"
    assert all(parts), "every process hosts one"
    assert together == alone(CASES[name].computation)

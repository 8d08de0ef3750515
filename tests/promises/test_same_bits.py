"""Processes and devices change no bit, whatever moves first: a table of trainings, against one process.

The trainings are those of `tests.support.same_bits_cases`: every method, schedule, transport, policy and precision.
"""

import json
from itertools import cycle
from typing import get_args

import pytest

from petra_graph.program.schedule import Policy
from petra_graph.runtime import nccl
from tests.support import strict_transport
from tests.support.forks import ended, ranks
from tests.support.same_bits_cases import CASES, COMPUTED, USUAL, alone, held, train

PATIENCE_SECONDS = 150

# --- real processes --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def held_by_processes(request, tmp_path_factory):
    """By number of processes, what each of them holds at the end of each case that is asked for: one launch for all of them."""
    found = {}
    items = [item for item in request.session.items if getattr(item, "originalname", "") == "test_processes"]
    asked = [item.callspec.params["name"] for item in items]

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


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES, ids=str)
def test_processes(shared_folder, held_by_processes, name):
    parts = held_by_processes(CASES[name].processes)[name]
    together = {key: value for part in parts for key, value in part.items()}
    assert sum(map(len, parts)) == len(together), "every stage is hosted once"
    assert all(parts), "every process hosts one"
    assert together == alone(CASES[name].computation)


# --- devices that exchange messages as NCCL does, at its strictest ---------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "policy"), list(zip(USUAL[1::3], cycle(get_args(Policy)), strict=False)))
def test_devices_that_exchange_messages(name, policy, monkeypatch):
    """Under both policies, whatever the hosts know late; the fabric refuses a device that waits for what a host has yet to do."""
    monkeypatch.setattr(nccl, "dist", strict_transport.Fabric())
    case = COMPUTED[name]
    scheduler, groups = strict_transport.scheduler(case.built().executors, len(name), policy)
    assert held(scheduler.executors, train(case, scheduler)) == alone(name)
    assert all(len(group.sent) == len(group.received) > 1 for group in groups)

"""Orders that torch's own schedule validator and simulator accept."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.compiler.timing import simulate
from petra_graph.program.method import METHODS
from petra_graph.program.stage_program import StageProgram
from tests.support.simulated_pipelines import SHORT, falling_depths, programs, timed

EVERY_METHOD = [
    (name, schedule) for name, method in METHODS.items() for schedule in method.schedules if schedule != "auto"
]


def to_torch_actions(programs: Sequence[StageProgram], micro_batches: int, ranks: Sequence[int] | None = None):
    """Return every rank's actions in torch's words: "0F3" is stage 0's forward of micro-batch 3, "0B3" its backward.

    torch.distributed.pipelining counts stages from 0 and has no word for an update.
    """
    places = range(len(programs)) if ranks is None else ranks
    model = timed(programs, [SHORT] * len(programs), devices=[str(rank) for rank in places])
    found = {rank: [] for rank in sorted(places)}
    for event in simulate(model, micro_batches):
        if event.verb != "update":
            found[int(event.device)].append(f"{event.stage - 1}{event.action}")
    return found


def accepted(actions, stages: int, count: int) -> None:
    """Torch finds every action once and in order, and no rank waiting for ever."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    wanted = ("_Action", "_validate_schedule", "_add_send_recv", "_simulate_comms_compute")
    if not all(hasattr(schedules, name) for name in wanted):
        pytest.skip("this torch keeps its schedule validator elsewhere")
    parsed = {rank: [schedules._Action.from_str(action) for action in row] for rank, row in actions.items()}
    assert {rank: [str(action) for action in row] for rank, row in parsed.items()} == actions
    placed = schedules._validate_schedule(parsed, len(actions), stages, count)
    with_messages = schedules._add_send_recv(parsed, placed.__getitem__, stages)
    done = schedules._simulate_comms_compute(with_messages, placed.__getitem__, stages)
    asked = {action for row in actions.values() for action in row}
    computed = [str(action) for row in done.values() for action in row if str(action) in asked]
    assert len(computed) == len(asked) == 2 * stages * count


def test_two_stages_of_1f1b():
    assert to_torch_actions(programs(2), 3) == {
        0: ["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"],
        1: ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"],
    }


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize(("method", "schedule"), EVERY_METHOD)
def test_every_methods_schedules(method, schedule, stages):
    made = programs(stages, schedule, accumulation=4, flush=METHODS[method].flush)
    accepted(to_torch_actions(made, 10), stages, 10)


@given(st.data(), st.integers(1, 5), st.integers(1, 12), st.integers(1, 4), st.sampled_from(["drain", "window"]))
def test_any_depths_that_do_not_grow(data, stages, count, accumulation, flush):
    made = programs(stages, data.draw(falling_depths(programs(stages), 3)), accumulation=accumulation, flush=flush)
    accepted(to_torch_actions(made, count), stages, count)


@pytest.mark.parametrize("ranks", [[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 1, 0], [0, 1, 0, 1]])
@pytest.mark.parametrize("schedule", ["lockstep", "1f1b", "sequential"])
def test_ranks_that_host_several_stages(schedule, ranks):
    actions = to_torch_actions(programs(4, schedule), 7, ranks)
    assert set(actions) == set(ranks)
    accepted(actions, 4, 7)

"""The simulation keeps the orders that the runtimes execute, which torch's own validator accepts, and the times that devices and links allow."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.compiler.timing import Event, simulate, timing
from petra_graph.program.device_types import Link
from petra_graph.program.schedule import Action, program_order
from petra_graph.program.simulation import Pipeline, StageSeconds
from petra_graph.program.stage_program import StageProgram
from tests.support.simulated_pipelines import SHORT, BothWays, chain, chains, falling_depths, graphs, programs, timed


def action(event: Event) -> Action:
    return Action(event.verb, event.micro_batch)


def drawn(events: Sequence[Event]) -> str:
    """Return a row a stage, one column a second."""
    return "\n" + "".join(f"    {line}\n" for line in _lines(events))


def _lines(events: Sequence[Event]) -> Iterator[str]:
    width = max(len(str(action(event))) for event in events) + 1
    for stage in sorted({event.stage for event in events}):
        cells = ["."] * round(max(event.end for event in events))
        for event in events:
            first, end = round(event.start), round(event.end)
            if event.stage == stage and end > first:
                cells[first:end] = [str(action(event)), *["--"] * (end - first - 1)]
        yield f"stage {stage}   " + "".join(f"{cell:<{width}}" for cell in cells).rstrip()


COUNT = 9

THREE_STAGES_OF_1F1B = """
    stage 1   F0 F1 F2 .  .  .  .  B0 -- F3 B1 -- .  B2 -- .  B3 --
    stage 2   .  F0 F1 .  .  B0 -- F2 B1 -- F3 B2 -- .  B3 -- .  .
    stage 3   .  .  F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 -- .  .  .  .
"""
TWO_WINDOWS_OF_GPIPE = """
    stage 1   F0 F1 F2 .  .  .  .  .  .  B0 -- B1 -- B2 -- F3 F4 F5 .  .  .  .  .  .  B3 -- B4 -- B5 --
    stage 2   .  F0 F1 F2 .  .  .  B0 -- B1 -- B2 -- .  .  .  F3 F4 F5 .  .  .  B3 -- B4 -- B5 -- .  .
    stage 3   .  .  F0 F1 F2 B0 -- B1 -- B2 -- .  .  .  .  .  .  F3 F4 F5 B3 -- B4 -- B5 -- .  .  .  .
"""
A_HOP_OF_ONE_UNIT = """
    stage 1   F0 F1 .  .  .  .  B0 -- F2 B1 -- F3 .  .  B2 -- .  B3 --
    stage 2   .  .  F0 B0 -- F1 B1 -- .  .  F2 B2 -- F3 B3 -- .  .  .
"""
A_LINK_THAT_IS_FULL = """
    stage 1   F0 F1 .  .  .  .  .  .  B0 -- F2 .  B1 -- F3 .  .  .  B2 -- .  .  B3 --
    stage 2   .  .  .  .  .  F0 B0 -- .  F1 B1 -- .  .  .  F2 B2 -- .  F3 B3 -- .  .
"""
AN_UPDATE_EVERY_TWO = """
    stage 1   F0 F1 .  .  B0 -- F2 B1 -- U  F3 B2 -- .  B3 -- U
    stage 2   .  F0 B0 -- F1 B1 -- U  F2 B2 -- F3 B3 -- U  .  .
"""


@pytest.mark.parametrize(
    ("model", "count", "expected"),
    [
        (chain(3, "1f1b", SHORT), 4, THREE_STAGES_OF_1F1B),
        (chain(3, "fill-drain", SHORT, accumulation=3, flush="window"), 6, TWO_WINDOWS_OF_GPIPE),
        (chain(2, "1f1b", SHORT, link=Link(latency_seconds=1)), 4, A_HOP_OF_ONE_UNIT),
        (chain(2, "1f1b", SHORT, link=Link(bytes_per_second=1), message=BothWays(forward=4)), 4, A_LINK_THAT_IS_FULL),
        (chain(2, "1f1b", StageSeconds(forward=1, backward=2, update=1), accumulation=2), 4, AN_UPDATE_EVERY_TWO),
    ],
)
def test_drawn_by_hand(model, count, expected):
    assert drawn(simulate(model, count)) == expected


def test_fill_and_drain_of_the_drawn_one():
    made = timing(chain(3, "1f1b", SHORT))
    assert (made.fill_seconds, made.drain_seconds) == (2, 4)
    assert max(event.end for event in simulate(chain(3, "1f1b", SHORT), 4)) == 18


def test_two_stages_on_one_device_take_turns_nearest_to_the_head_first():
    events = simulate(timed(programs(2), [SHORT] * 2, devices="aa"), 3)
    done = [f"{event.stage}{action(event)}" for event in events if event.verb != "update"]
    assert done == ["1F0", "2F0", "2B0", "1F1", "2F1", "2B1", "1B0", "1F2", "2F2", "2B2", "1B1", "1B2"]


@given(st.one_of(chains(), graphs(), graphs(shared=True)))
def test_orders_devices_and_messages(model: Pipeline):
    """Each stage follows its order, a device does one operation at a time, and none starts before its messages arrive."""
    events = simulate(model, COUNT)
    assert simulate(model, COUNT) == events
    for stage in model.stages:
        found = [action(event) for event in events if event.stage == stage.index]
        assert found == list(program_order(stage, range(COUNT)))
    on_device = defaultdict(list)
    for event in events:
        on_device[event.device].append(event)
        assert event.end - event.start == getattr(model.seconds[event.stage - 1], event.verb)
    for own in on_device.values():
        assert all(before.end <= after.start for before, after in pairwise(own))
    at = {(event.stage, action(event)): event for event in events}
    entered = defaultdict(list)
    for key, channel in model.channels.items():
        for m in range(COUNT):
            sent, read = (at[one, Action(key.direction, m)] for one in (channel.sender, channel.receiver))
            assert read.start >= sent.end + channel.seconds
            if channel.link is not None:
                entered[channel.link].append((sent.end, channel.occupies_seconds, read.start))
    for messages in entered.values():  # a link carries one after another
        first = min(sent for sent, _, _ in messages)
        assert max(read for _, _, read in messages) >= first + sum(occupies for _, occupies, _ in messages)


def test_depths_that_grow_wait_for_ever():
    with pytest.raises(AssertionError, match="depths grow along an edge"):
        simulate(chain(3, (2, 3, 1)), 5)


# --- orders that torch's own schedule validator and simulator accept ---


def to_torch_actions(programs: Sequence[StageProgram], micro_batches: int, ranks: Sequence[int] | None = None):
    """Return every rank's actions in torch's words: "0F3" is stage 0's forward of micro-batch 3, "0B3" its backward.

    torch.distributed.pipelining counts stages from 0 and has no word for an update.
    """
    places = range(len(programs)) if ranks is None else ranks
    model = timed(programs, [SHORT] * len(programs), devices=[str(rank) for rank in places])
    found = {rank: [] for rank in sorted(places)}
    for event in simulate(model, micro_batches):
        if event.verb != "update":
            found[int(event.device)].append(f"{event.stage - 1}{action(event)}")
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

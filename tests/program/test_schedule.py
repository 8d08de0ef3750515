"""The order of operations, as the tables in the module's docstring draw it, and what every order promises."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.program import schedule
from petra_graph.program.schedule import LETTERS, depths, messages, order, schedule_text, verb_depth
from petra_graph.spec.model import Word


def depth(name: str, distance: int) -> int:
    return depths(name, [distance], 1)[0]


THREE_STAGES_OF_1F1B = """
    stage 1   F0 F1 F2 B0 F3 B1 U F4 B2 B3 U B4 U
    stage 2   F0 F1 B0 F2 B1 U F3 B2 F4 B3 U B4 U
    stage 3   F0 B0 F1 B1 U F2 B2 F3 B3 U F4 B4 U
"""
THREE_STAGES_OF_LOCKSTEP = """
    stage 1   F0 F1 F2 F3 F4 B0 U B1 U B2 U B3 U B4 U
    stage 2   F0 F1 F2 B0 U F3 B1 U F4 B2 U B3 U B4 U
    stage 3   F0 B0 U F1 B1 U F2 B2 U F3 B3 U F4 B4 U
"""
THREE_STAGES_OF_SEQUENTIAL = """
    stage 1   F0 B0 F1 B1 F2 B2 U F3 B3 F4 B4 U
    stage 2   F0 B0 F1 B1 F2 B2 U F3 B3 F4 B4 U
    stage 3   F0 B0 F1 B1 F2 B2 U F3 B3 F4 B4 U
"""


def table(schedule: str, accumulation: int, stages: int = 3, micro_batches: int = 5) -> str:
    rows = [
        " ".join(map(str, order(depth(schedule, stages - j), range(micro_batches), accumulation)))
        for j in range(1, stages + 1)
    ]
    return "".join(f"    stage {j}   {row}\n" for j, row in enumerate(rows, start=1))


@pytest.mark.parametrize(
    ("schedule", "accumulation", "expected"),
    [
        ("1f1b", 2, THREE_STAGES_OF_1F1B),
        ("lockstep", 1, THREE_STAGES_OF_LOCKSTEP),
        ("sequential", 3, THREE_STAGES_OF_SEQUENTIAL),
    ],
)
def test_tick_tables(schedule, accumulation, expected):
    assert table(schedule, accumulation) == expected.removeprefix("\n")


def test_the_docstring_draws_the_same_table():
    assert THREE_STAGES_OF_1F1B.strip("\n") in schedule.__doc__


THREE_SPLIT_STAGES = {
    (2, "RFIW"): "F0 R0 F1 I0 W0 U R1 F2 I1 W1 U R2 I2 W2 U",
    (2, "RIFW"): "F0 R0 I0 F1 W0 U R1 I1 F2 W1 U R2 I2 W2 U",
    (1, "FRIW"): "F0 R0 I0 W0 U F1 R1 I1 W1 U F2 R2 I2 W2 U",
}
JOINED = {
    (2, "RFB"): "F0 R0 F1 B0 U R1 F2 B1 U R2 B2 U",
    (2, "FRB"): "F0 F1 R0 B0 U F2 R1 B1 U R2 B2 U",
    (2, "FB"): "F0 F1 B0 U F2 B1 U B2 U",
}


@pytest.mark.parametrize(("ahead", "word"), THREE_SPLIT_STAGES)
def test_the_forward_of_a_period_stands_where_the_word_has_it(ahead, word):
    expected = THREE_SPLIT_STAGES[ahead, word]
    assert " ".join(map(str, order(ahead, range(3), 1, word=word))) == expected
    assert f"{expected}    depth {ahead}, {word}" in schedule.__doc__


@pytest.mark.parametrize(("ahead", "word"), JOINED)
def test_joined_parts_are_one_operation(ahead, word):
    assert " ".join(map(str, order(ahead, range(3), 1, word=word))) == JOINED[ahead, word]


@pytest.mark.parametrize(
    ("producer", "consumer", "activation", "gradient"),
    [
        ("FRIW", "RIFW", "R -> R", "I -> I"),
        ("RFB", "RFIW", "R -> R", "I -> B"),
        ("FB", "FRB", "R -> B", "B -> B"),
        ("RFIW", "FB", None, "B -> R"),
        ("FRB", "FB", None, "B -> R"),
        ("FB", "FB", None, "B -> B"),
    ],
)
def test_an_edge_has_one_message_back_only_if_the_later_stage_is_whole(producer, consumer, activation, gradient):
    def shown(**given):
        return {
            direction: " -> ".join(LETTERS[verb] for verb in verbs)
            for direction, verbs in messages(producer, consumer, **given).items()
        }

    ahead = {} if activation is None else {"activation": activation}
    assert shown(returns_activation=True) == {"forward": "F -> F", **ahead, "backward": gradient}


def test_gradients_alone_are_read_where_they_are_needed():
    """The producer keeps its input, so its R waits for nobody."""
    assert messages("RFIW", "FB", returns_activation=False)["backward"] == ("backward", "input_gradient")


def test_a_split_pipeline_that_fills_anew_keeps_its_windows():
    found = " ".join(map(str, order(3, range(7), 2, filled=3, word="RFIW")))
    assert found == "F3 F4 R3 F5 I3 W3 U R4 F6 I4 W4 R5 I5 W5 U R6 I6 W6 U"


def test_a_forward_cannot_come_after_its_own_reconstruction():
    with pytest.raises(AssertionError, match="own reconstruction"):
        list(order(1, range(3), 1, word="RFIW"))


WORDS = st.sampled_from(get_args(Word))


@pytest.mark.parametrize(
    ("flush", "expected"),
    [("drain", "F3 F4 B3 U F5 B4 F6 B5 U B6 U"), ("window", "F3 B3 U F4 F5 B4 B5 U F6 B6 U")],
)
def test_a_pipeline_that_fills_anew_goes_on_with_its_windows(flush, expected):
    assert " ".join(map(str, order(2, range(7), 2, flush, filled=3))) == expected
    assert list(order(2, range(3, 7), 2, flush, filled=2)) == list(order(2, range(3, 7), 2, flush))


def test_fill_and_drain_by_windows():
    """GPipe: all forwards of a window, then all its backwards, then the step; the last window is shorter."""
    (ahead,) = depths("fill-drain", [2], 3)
    found = " ".join(map(str, order(ahead, range(5), 3, "window")))
    assert found == "F0 F1 F2 B0 B1 B2 U F3 F4 B3 B4 U"


def test_1f1b_flushed_by_windows():
    found = " ".join(map(str, order(depth("1f1b", 1), range(5), 3, "window")))
    assert found == "F0 F1 B0 F2 B1 B2 U F3 F4 B3 B4 U"


def test_depths_of_a_list_are_the_list():
    assert depths((4, 2, 1), [2, 1, 0], 8) == (4, 2, 1)
    assert schedule_text((4, 2, 1)) == "depths 4, 2, 1"
    assert schedule_text("1f1b") == "1f1b"


def test_numbers_count_from_the_runs_start():
    assert " ".join(map(str, order(2, range(7, 10), 2))) == "F7 F8 B7 F9 B8 U B9 U"


def test_a_window_does_not_cross_a_drain():
    """Three micro-batches, then three more: the second drain's windows start anew, whatever the first left."""
    drains = [range(3), range(3, 6)]
    assert [" ".join(map(str, order(1, each, 2))) for each in drains] == [
        "F0 B0 F1 B1 U F2 B2 U",
        "F3 B3 F4 B4 U F5 B5 U",
    ]


@pytest.mark.parametrize("distance", range(6))
def test_depths(distance):
    assert {name: depth(name, distance) for name in ("lockstep", "1f1b", "sequential")} == {
        "lockstep": 2 * distance + 1,
        "1f1b": distance + 1,
        "sequential": 1,
    }


ORDERS = {
    "depth": st.integers(1, 12),
    "first": st.integers(0, 50),
    "count": st.integers(0, 30),
    "accumulation": st.integers(1, 9),
}


@given(**ORDERS)
def test_every_micro_batch_goes_forward_and_backward_once_in_order(depth, first, count, accumulation):
    actions = list(order(depth, range(first, first + count), accumulation))
    expected = list(range(first, first + count))
    assert [action.micro_batch for action in actions if action.verb == "forward"] == expected
    assert [action.micro_batch for action in actions if action.verb == "backward"] == expected
    for m in expected:
        places = {action.verb: place for place, action in enumerate(actions) if action.micro_batch == m}
        assert places["forward"] < places["backward"]


@given(**ORDERS)
def test_no_more_than_depth_are_in_flight_and_as_many_once_it_is_filled(depth, first, count, accumulation):
    flying = most = 0
    for action in order(depth, range(first, first + count), accumulation):
        flying += {"forward": 1, "backward": -1, "update": 0}[action.verb]
        most = max(most, flying)
        assert flying >= 0
    assert flying == 0
    assert most == min(depth, count)


@given(**ORDERS)
def test_an_update_ends_each_window_and_the_drain(depth, first, count, accumulation):
    windows, window = [], 0
    for action in order(depth, range(first, first + count), accumulation):
        if action.verb == "update":
            windows.append(window)
            window = 0
        window += action.verb == "backward"
    assert window == 0
    assert len(windows) == -(-count // accumulation)
    assert windows == [min(accumulation, count - done) for done in range(0, count, accumulation)]


@given(**ORDERS)
def test_forwards_stop_only_to_let_a_backward_pass(depth, first, count, accumulation):
    """After its first forwards a stage alternates, until the data ends."""
    verbs = "".join(
        str(action)[0] for action in order(depth, range(first, first + count), accumulation) if action.verb != "update"
    )
    ahead = min(depth, count)
    assert verbs == "F" * ahead + "BF" * (count - ahead) + "B" * ahead


@given(**ORDERS, word=WORDS)
def test_a_split_order_is_the_whole_one_but_for_the_place_of_the_forward(depth, first, count, accumulation, word):
    depth += 1
    micro_batches = range(first, first + count)
    whole = list(order(depth, micro_batches, accumulation))
    split = list(order(depth, micro_batches, accumulation, word=word))
    assert [a for a in split if a.verb == "forward"] == [a for a in whole if a.verb == "forward"]
    parts = [str(a) for a in split if a.verb != "forward"]
    expected = " ".join(
        " ".join(f"{letter}{a.micro_batch}" for letter in word.replace("F", "")) if a.verb == "backward" else str(a)
        for a in whole
        if a.verb != "forward"
    )
    assert " ".join(parts) == expected


@given(**ORDERS, word=WORDS)
def test_forwards_come_after_the_same_updates_whatever_the_word(depth, first, count, accumulation, word):
    """So what a run computes follows from depths alone: F(m) sees the updates of the windows up to m - depth."""
    depth += 1
    orders = [list(order(depth, range(first, first + count), accumulation, word=each)) for each in ("FB", word)]
    before = [
        [sum(b.verb == "update" for b in actions[:at]) for at, a in enumerate(actions) if a.verb == "forward"]
        for actions in orders
    ]
    assert before[0] == before[1]


@given(**ORDERS, word=WORDS)
def test_the_depth_of_a_verb_is_the_number_of_forwards_before_it(depth, first, count, accumulation, word):
    depth += 1
    forwards = 0
    for action in order(depth, range(first, first + count), accumulation, word=word):
        forwards += action.verb == "forward"
        if action.verb not in ("forward", "update"):
            assert forwards == min(count, action.micro_batch - first + verb_depth(action.verb, depth, word))


STALENESS = {"lockstep": lambda distance: 2 * distance, "1f1b": lambda distance: distance, "sequential": lambda _: 0}


@pytest.mark.parametrize("distance", range(5))
@pytest.mark.parametrize("schedule", STALENESS)
def test_staleness_in_micro_batches_is_the_one_in_the_table(schedule, distance):
    """Between a micro-batch's two passes, so many others' gradients reach the stage: measured once it is filled."""
    actions = list(order(depth(schedule, distance), range(40), 1))
    staleness = set()
    for m in range(15, 25):
        start = next(i for i, a in enumerate(actions) if (a.verb, a.micro_batch) == ("forward", m))
        end = next(i for i, a in enumerate(actions) if (a.verb, a.micro_batch) == ("backward", m))
        staleness.add(sum(action.verb == "update" for action in actions[start:end]))
    assert staleness == {STALENESS[schedule](distance)}


@pytest.mark.parametrize("accumulation", [1, 2, 3, 4])
def test_staleness_in_updates_is_that_number_over_k_on_average(accumulation):
    actions = list(order(depth("lockstep", 6), range(20 * accumulation * 12), accumulation))
    place = {(action.verb, action.micro_batch): index for index, action in enumerate(actions)}
    window = range(60, 60 + 10 * accumulation)
    between = [
        sum(action.verb == "update" for action in actions[place["forward", m] : place["backward", m]]) for m in window
    ]
    assert sum(between) / len(between) == pytest.approx(12 / accumulation)


def test_lockstep_fills_its_ticks_with_a_forward_and_a_backward_of_every_stage():
    """PETRA equation (5): stage j's forward of m on tick m + j - 1, its backward on tick m + 2J - j - 1."""
    stages, count = 4, 20
    assert ticks("lockstep", stages, count) == {
        (verb, j, m): m + (j - 1 if verb == "F" else 2 * stages - j - 1)
        for verb in "FB"
        for j in range(1, stages + 1)
        for m in range(count)
    }


def ticks(schedule: str, stages: int, count: int) -> dict[tuple[str, int, int], int]:
    """When each operation happens, if a tick holds one forward, then one backward of each stage, and a hop takes one."""
    rows = {
        j: [a for a in order(depth(schedule, stages - j), range(count), 1) if a.verb != "update"]
        for j in range(1, stages + 1)
    }
    when: dict[tuple[str, int, int], int] = {}
    for tick in range(10 * (stages + count)):
        for verb in ("forward", "backward"):
            for j, row in rows.items():
                if row and row[0].verb == verb:
                    m = row[0].micro_batch
                    before = ("F", j - 1, m) if verb == "forward" else ("B", j + 1, m)
                    if before[1] in (0, stages + 1) or when.get(before, tick) < tick:
                        when[verb[0].upper(), j, m] = tick
                        row.pop(0)
    return when


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("schedule", STALENESS)
def test_torchs_own_validator_finds_each_order_whole_and_without_deadlock(schedule, stages):
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    wanted = ("_Action", "_validate_schedule", "_add_send_recv", "_simulate_comms_compute")
    if not all(hasattr(schedules, name) for name in wanted):
        pytest.skip("this torch keeps its schedule validator elsewhere")
    count = 2 * stages + 3
    actions = {
        j - 1: [
            schedules._Action.from_str(f"{j - 1}{action}")
            for action in order(depth(schedule, stages - j), range(count), 1)
            if action.verb != "update"
        ]
        for j in range(1, stages + 1)
    }
    placed = schedules._validate_schedule(actions, stages, stages, count)
    assert placed == {stage: stage for stage in range(stages)}
    with_messages = schedules._add_send_recv(actions, lambda stage: stage, stages)
    schedules._simulate_comms_compute(with_messages, lambda stage: stage, stages)

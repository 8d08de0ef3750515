"""What a channel holds: its capacity, and the layout of its messages."""

from __future__ import annotations

import pytest

from petra_graph.program.channels import capacity
from petra_graph.program.schedule import order
from tests.support.costs import encoded_bytes


@pytest.mark.parametrize(("producer", "consumer", "expected"), [(1, 1, 2), (2, 1, 2), (3, 1, 2), (5, 2, 4), (9, 1, 9)])
def test_a_producer_that_is_far_ahead_never_waits_for_room(producer, consumer, expected):
    assert capacity(producer, consumer) == expected


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize(("producer", "consumer"), [(1, 1), (3, 1), (3, 2), (7, 5), (9, 1), (5, 5)])
def test_so_many_are_enough_for_two_stages_to_finish(producer, consumer, accumulation):
    """Each does its next operation when its message is there and the other channel has room."""
    room = capacity(producer, consumer)
    channels = {"forward": 0, "backward": 0}
    first, second = (list(order(depth, range(30), accumulation)) for depth in (producer, consumer))
    while first or second:
        before = len(first) + len(second)
        if first and possible(first[0].verb, channels, room, sends="forward"):
            channels["forward"] += first[0].verb == "forward"
            channels["backward"] -= first.pop(0).verb == "backward"
        if second and possible(second[0].verb, channels, room, sends="backward"):
            channels["backward"] += second[0].verb == "backward"
            channels["forward"] -= second.pop(0).verb == "forward"
        assert len(first) + len(second) < before, f"{first[:1]} and {second[:1]} wait for one another"


def possible(verb: str, channels: dict[str, int], room: int, *, sends: str) -> bool:
    return verb == "update" or (channels[verb] < room if verb == sends else channels[verb] > 0)


@pytest.mark.parametrize(
    ("stored", "own", "expected"),
    [
        ("as-streams", "float64", 8 * 24),
        ("bfloat16", "float64", 2 * 24),
        ("bfloat16", "float32", 2 * 24),
        ("int8", "float32", 24 + 4),
        ("int8", "bool", 24),
        ("int8", "uint8", 24),
        ("int8", "int64", 8 * 24),
    ],
)
def test_bytes(stored, own, expected):
    assert encoded_bytes((2, 3, 4), stored, own) == expected


def test_nothing_but_a_scale_is_left_of_no_elements():
    assert encoded_bytes((0, 4), "int8", "float32") == 4
    assert encoded_bytes((), "bfloat16", "float32") == 2

"""What a channel holds, and what methods keep."""

from __future__ import annotations

import pytest

from petra_graph.program.channels import capacity
from petra_graph.program.method import METHODS
from petra_graph.program.schedule import order


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
    ("method", "kind", "asked", "how", "expected"),
    [
        ("petra", "reversible", None, "delayed", ("nothing", "current")),
        ("petra", "reversible", "input", "delayed", ("input", "current")),
        ("petra", "reversible", "graph", "at once", ("graph", "current")),
        # A graph has the forward's parameters: without them, a delayed node keeps what the method says.
        ("petra", "reversible", "graph", "delayed", ("nothing", "current")),
        ("petra", "buffered", "graph", "delayed", ("input", "current")),
        ("petra", "reversible", "graph", "delayed, with stored parameters", ("graph", "stored")),
        ("pipedream", "reversible", "graph", "delayed", ("graph", "stored")),
        ("pipedream", "reversible", "graph", "at once", ("graph", "current")),
        ("pipedream", "reversible", "nothing", "delayed", ("nothing", "stored")),
        ("gpipe", "buffered", "input", "at once", ("input", "current")),
        ("paci", "reversible", "graph", "delayed", ("graph", "current")),
        ("paci", "buffered", None, "delayed", ("graph", "current")),
    ],
)
def test_what_a_single_node_keeps(method, kind, asked, how, expected):
    delayed, allowed = how != "at once", how == "delayed, with stored parameters"
    assert METHODS[method].mode(kind, asked, delayed=delayed, allow_stored=allowed) == expected

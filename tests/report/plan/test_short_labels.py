"""Short names for many things."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.report.plan.short_labels import nodes_label, ranges_label, schedule_label


@pytest.mark.parametrize(
    ("expected", "names"),
    [
        ("stem, down1, layer1.0-2, head", ["stem", "down1", "layer1.0", "layer1.1", "layer1.2", "head"]),
        ("layer1.1, layer1.3", ["layer1.1", "layer1.3"]),
        ("layer1.1, layer2.2", ["layer1.1", "layer2.2"]),
        ("a.1.0-1", ["a.1.0", "a.1.1"]),
        ("x.01, x.02", ["x.01", "x.02"]),
        ("line break", ["line\nbreak"]),
        ("", []),
    ],
)
def test_nodes(expected, names):
    assert nodes_label(names) == expected


@pytest.mark.parametrize(("expected", "numbers"), [("1-4, 7", [7, 1, 2, 3, 4]), ("0", [0]), ("", []), ("1-2", [2, 1])])
def test_ranges(expected, numbers):
    assert ranges_label(numbers) == expected


@given(st.sets(st.integers(0, 60)))
def test_ranges_name_every_number_once(numbers):
    named = []
    for part in filter(None, ranges_label(numbers).split(", ")):
        first, _, last = part.partition("-")
        named += range(int(first), int(last or first) + 1)
    assert named == sorted(numbers)


def test_schedules():
    assert schedule_label("lockstep") == "lockstep"
    assert schedule_label([5, 3, 1]) == "depths 5, 3, 1"
    assert schedule_label(list(range(20, 0, -1))) == "depths 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, …"

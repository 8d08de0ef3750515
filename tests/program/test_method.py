"""Methods as points of one space."""

from __future__ import annotations

import pytest

from petra_graph.program.method import METHODS, is_synchronous


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_a_name_and_a_default_schedule(name):
    method = METHODS[name]
    assert method.name == name
    assert method.schedules


@pytest.mark.parametrize("name", METHODS)
def test_what_each_kind_keeps(name):
    method = METHODS[name]
    assert method.keeps("reversible") == method.reversible
    assert method.keeps("buffered") == method.buffered


@pytest.mark.parametrize(
    ("schedule", "flush", "expected"),
    [
        ("sequential", "drain", True),
        ((1, 1, 1), "drain", True),
        ("1f1b", "window", True),
        ("1f1b", "drain", False),
        ("lockstep", "drain", False),
        ((3, 2, 1), "drain", False),
    ],
)
def test_what_is_synchronous(schedule, flush, expected):
    assert is_synchronous(schedule, flush) is expected

"""Methods as points of one space."""

from __future__ import annotations

import re

import pytest

from petra_graph.program import method as module
from petra_graph.program.method import METHODS, is_synchronous


def test_the_docstring_draws_the_table():
    """Name, schedules, what reversible and buffered nodes keep, whose parameters, when to flush."""
    rows = re.findall(
        r"^    (\S+)  +(lockstep, 1f1b|\S+)  +(\w+)  +(\w+)  +(current|stored)(?:  +(window))?$",
        module.__doc__,
        re.MULTILINE,
    )
    assert {
        name: (tuple(schedules.split(", ")), reversible, buffered, backward, flush or "drain")
        for name, schedules, reversible, buffered, backward, flush in rows
    } == {
        name: (
            tuple(
                schedule
                for schedule in method.schedules
                if schedule not in {"sequential", "auto"} or len(method.schedules) == 1
            ),
            method.reversible,
            method.buffered,
            method.backward,
            method.flush,
        )
        for name, method in METHODS.items()
    }


@pytest.mark.parametrize("name", METHODS)
def test_a_method_knows_its_name_its_source_and_a_default_schedule(name):
    method = METHODS[name]
    assert method.name == name
    assert method.source
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

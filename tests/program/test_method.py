"""Methods as points of one space."""

from __future__ import annotations

import pytest

from petra_graph.program.method import METHODS

TABLE = {
    "petra": (("lockstep", "1f1b", "sequential"), "nothing", "input"),
    "backprop": (("sequential",), "graph", "graph"),
}


def test_the_table_of_methods():
    found = {
        name: (method.schedules, method.reversible_keeps, method.buffered_keeps) for name, method in METHODS.items()
    }
    assert {name: found[name] for name in TABLE} == TABLE


@pytest.mark.parametrize("name", METHODS)
def test_a_method_knows_its_name_its_source_and_a_default_schedule(name):
    method = METHODS[name]
    assert method.name == name
    assert method.source
    assert method.schedules


@pytest.mark.parametrize("name", METHODS)
def test_what_each_kind_keeps(name):
    method = METHODS[name]
    assert method.keeps("reversible") == method.reversible_keeps
    assert method.keeps("buffered") == method.buffered_keeps

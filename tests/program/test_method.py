"""Methods as points of one space."""

from __future__ import annotations

import pytest

from petra_graph.program.method import METHODS, is_delayed, is_synchronous


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


@pytest.mark.parametrize(
    ("depth", "flush", "expected"), [(1, "drain", False), (2, "drain", True), (2, "window", False)]
)
def test_what_is_delayed(depth, flush, expected):
    assert is_delayed(depth, flush) is expected


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

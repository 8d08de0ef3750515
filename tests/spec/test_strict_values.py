"""Strict reading: nothing is converted, and everything that is wrong is gathered with its path and its rule."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from attrs import field, fields, frozen

from petra_graph.spec.in_code import toml_values
from petra_graph.spec.load_spec import load
from petra_graph.spec.model import DataSpec, NodeSpec, OptimizerSpec
from petra_graph.spec.strict_values import (
    AtLeast,
    AtMost,
    Each,
    GreaterThan,
    Length,
    LessThan,
    Reader,
    annotated,
    brief,
)


def read(given, path):
    reader = Reader()
    return reader.read(given, Outer, path), reader.problems


def _even(value):
    if value % 2:
        raise ValueError("must be even")


@frozen(kw_only=True)
class Inner:
    size: Annotated[int, "", AtLeast(1)]
    word: Literal["one", "two"] = "one"


@frozen(kw_only=True)
class Outer:
    count: int = 1
    rate: Annotated[float, "", GreaterThan(0), AtMost(1)] = 0.5
    flag: bool = False
    level: Literal[0, 1] = 0
    code: Annotated[str, "", Length(at_least=2)] = "abc"
    size: Annotated[int, "", AtLeast(1), _even] = 2
    pair: tuple[int, int] = (1, 2)
    betas: Annotated[tuple[float, ...], "", Length(2), Each(AtLeast(0), LessThan(1))] = (0.5, 0.5)
    rows: Annotated[tuple[tuple[int, ...], ...], "", Each(Length(at_least=1), Each(AtLeast(0)))] = ()
    numbers: list[float] = field(factory=list)
    stages: Literal["per-block"] | tuple[tuple[str, ...], ...] = "per-block"
    devices: Annotated[int | tuple[str, ...], "", AtLeast(1), Length(at_least=1)] = 1
    limit: Annotated[int | None, "", AtLeast(1)] = None
    free: Mapping[str, Any] = field(factory=dict)
    sizes: Mapping[str, int] = field(factory=dict)
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"rate": 1}, 1.0),
        ({"numbers": [1, 2.5]}, [1.0, 2.5]),
        ({"stages": [["a"], ["b", "c"]]}, (("a",), ("b", "c"))),
        ({"limit": 2}, 2),
        ({"free": {"a": {"b": 1}}}, {"a": {"b": 1}}),
        ({"many": [{"size": 1}, {"size": 2, "word": "two"}]}, (Inner(size=1), Inner(size=2, word="two"))),
        # Code that computes options, an architecture's or a notebook's, was refused: `features must be an integer (got 16)`.
        ({"count": np.int64(3)}, 3),
        ({"pair": [np.int32(3), 4]}, (3, 4)),
        ({"free": {"a": np.int64(1)}}, {"a": 1}),
    ],
)
def test_accepted_values(given, expected):
    value, problems = read(given, ())
    assert not problems
    found = getattr(value, next(iter(given)))
    assert (found, type(found)) == (expected, type(expected))
    assert "numpy" not in {type(one).__module__ for one in leaves(toml_values(value))}


def leaves(value):
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return [value] if items is None else [leaf for item in items for leaf in leaves(item)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"count": np.float64(3.0)}, "count in [t] must be an integer (got 3.0)"),
        ({"rate": 0}, "rate in [t] must be greater than 0 (got 0)"),
        ({"rate": 1.5}, "rate in [t] must be at most 1 (got 1.5)"),
        ({"flag": 1}, "flag in [t] must be true or false (got 1)"),
        ({"level": True}, "level in [t] must be one of 0, 1 (got true)"),
        ({"code": "a"}, 'code in [t] must have at least 2 characters (got "a")'),
        ({"size": 3}, "size in [t] must be even (got 3)"),
        ({"pair": [1]}, "pair in [t] must be a list of 2 integers (got [1])"),
        ({"pair": [1, "2"]}, 'pair[1] in [t] must be an integer (got "2")'),
        ({"betas": [0.5]}, "betas in [t] must have 2 items (got [0.5])"),
        ({"betas": [0.5, 1]}, "betas[1] in [t] must be less than 1 (got 1)"),
        ({"rows": [[1], []]}, "rows[1] in [t] must not be empty"),
        ({"rows": [[1], [2, -1]]}, "rows[1][1] in [t] must be at least 0 (got -1)"),
        ({"stages": [["a", 1]]}, "stages[0][1] in [t] must be a string (got 1)"),
        ({"devices": True}, "devices in [t] must be an integer, or a list of strings (got true)"),
        ({"limit": 0}, "limit in [t] must be at least 1 (got 0)"),
        ({"sizes": {"b": "x"}}, 'b in [t.sizes] must be an integer (got "x")'),
        ({"inner": {}}, "size is missing in [t.inner]"),
        ({"many": [{"size": 1}, {"sise": 1}]}, 'unknown key "sise" in [t.many.1]'),
        ({"count": "y" * 100}, f'count in [t] must be an integer (got "{"y" * 56}...)'),
    ],
)
def test_refused_values(given, expected):
    assert [problem.message for problem in read(given, ("t",))[1]] == [expected]


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"count": "three"}, ""),
        ({"inner": {"size": 1, "word": "ones"}}, "did you mean 'one'? allowed: one, two"),
        ({"devices": "cuda"}, 'write ["cuda"]'),
    ],
)
def test_hints(given, hint):
    assert read(given, ("t",))[1][0].hint == hint


def test_bounds_as_they_are_listed():
    assert {one.name: text for one in fields(Outer) if (text := brief(annotated(one.type)[2]))} == {
        "rate": "> 0, <= 1",
        "code": "length >= 2",
        "size": ">= 1",
        "betas": "length 2, each >= 0, < 1",
        "rows": "each not empty, each >= 0",
        "devices": ">= 1, not empty",
        "limit": ">= 1",
    }


BROKEN = """
[data]
name = "digits"
batch = 0
[optimizer]
{optimizer}
options = { lr = 1 }
[loss]
options = 3
[[graph.node]]
name = "stem"
block = "linear-stem"
kind = "bufered"
options = { features = 3 }
[[graph.node]]
block = 3
"""


def test_readable_tables_are_there_beside_problems(write):
    parts = load(write("a.toml", BROKEN.replace("{optimizer}", 'nam = "adam"'))).parts
    # `nam` may have meant another plugin than the default, so that its options say nothing.
    assert not parts.keys() & {(), ("optimizer",), ("loss",), ("graph", "node", 1)}
    assert parts[("data",)] == DataSpec(name="digits")
    assert parts[("graph", "node", 0)] == NodeSpec(name="stem", block="linear-stem", options={"features": 3})
    assert ("method",) in parts
    parts = load(write("a.toml", BROKEN.replace("{optimizer}", "clip = { limit = 0 }"))).parts
    assert parts[("optimizer",)] == OptimizerSpec(options={"lr": 1})

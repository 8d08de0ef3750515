"""Strict reading: nothing is converted, and everything that is wrong is gathered; a specification written out is read as the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from attrs import field, frozen
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.spec import model
from petra_graph.spec.in_code import toml_values
from petra_graph.spec.load_spec import load
from petra_graph.spec.strict_values import AtLeast, AtMost, GreaterThan, Length, LessThan, Reader


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
    betas: Annotated[tuple[Annotated[float, AtLeast(0), LessThan(1)], ...], "", Length(2)] = (0.5, 0.5)
    rows: tuple[Annotated[tuple[Annotated[int, AtLeast(0)], ...], Length(at_least=1)], ...] = ()
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
        ({"count": np.float64(3.0)}, "t.count: must be an integer (got 3.0)"),
        ({"rate": 0}, "t.rate: must be > 0 (got 0)"),
        ({"rate": 1.5}, "t.rate: must be <= 1 (got 1.5)"),
        ({"flag": 1}, "t.flag: must be true or false (got 1)"),
        ({"level": True}, "t.level: must be one of 0, 1 (got true)"),
        ({"code": "a"}, 't.code: must be of length >= 2 (got "a")'),
        ({"size": 3}, "t.size: must be even (got 3)"),
        ({"pair": [1]}, "t.pair: must be [an integer, an integer] (got [1])"),
        ({"pair": [1, "2"]}, 't.pair.1: must be an integer (got "2")'),
        ({"betas": [0.5]}, "t.betas: must be of length 2 (got [0.5])"),
        ({"betas": [0.5, 1]}, "t.betas.1: must be < 1 (got 1)"),
        ({"rows": [[1], []]}, "t.rows.1: must be of length >= 1 (got [])"),
        ({"rows": [[1], [2, -1]]}, "t.rows.1.1: must be >= 0 (got -1)"),
        ({"stages": [["a", 1]]}, "t.stages.0.1: must be a string (got 1)"),
        ({"devices": True}, "t.devices: must be an integer, or [a string, ...] (got true)"),
        ({"limit": 0}, "t.limit: must be >= 1 (got 0)"),
        ({"sizes": {"b": "x"}}, 't.sizes.b: must be an integer (got "x")'),
        ({"inner": {}}, "t.inner.size is missing"),
        ({"many": [{"size": 1}, {"size": 1, "sise": 1}]}, "unknown key t.many.1.sise"),
        ({"count": "y" * 100}, f't.count: must be an integer (got "{"y" * 56}...)'),
    ],
)
def test_refused_values(given, expected):
    assert [problem.message for problem in read(given, ("t",))[1]] == [expected]


# --- written out and read again ---


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
names = st.from_regex(r"[\w-][\w.-]{0,7}", fullmatch=True)
rates = st.floats(0.001, 1e6)
values = st.recursive(
    st.integers(-100, 100) | st.booleans() | rates | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, min_size=1, max_size=3),
    max_leaves=5,
)
options = st.dictionaries(words, values, max_size=3)


def tuples(strategy, least=0):
    return st.lists(strategy, min_size=least, max_size=3).map(tuple)


plugins = st.builds(model.PluginSpec, name=words, options=options)
nodes = st.builds(
    model.NodeSpec,
    name=names,
    block=words,
    kind=st.sampled_from([None, "buffered"]),
    inputs=st.none() | tuples(words),
    options=options,
)
graphs = st.builds(model.GraphSpec, node=tuples(nodes, 1))
specs = st.builds(
    lambda network, **rest: model.Spec(**network, **rest),
    network=graphs.map(lambda graph: {"graph": graph}) | plugins.map(lambda plugin: {"architecture": plugin}),
    name=names,
    partition=st.builds(
        model.PartitionSpec,
        stages=st.just("per-block") | tuples(tuples(words)),
        devices=st.integers(1, 4) | tuples(words, 1),
    ),
    optimizer=st.builds(
        model.OptimizerSpec, name=words, options=options, clip=st.none() | st.builds(model.ClipSpec, limit=rates)
    ),
    data=st.builds(model.DataSpec, name=words, options=options, evaluation_batch=st.none() | st.integers(1, 9)),
    callback=st.none() | tuples(plugins),
)


@given(specs)
def test_a_dumped_spec_loads_as_an_equal_one(spec):
    loaded = load(spec)
    assert loaded.problems == ()
    assert loaded.spec == spec

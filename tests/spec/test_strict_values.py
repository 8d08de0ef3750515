"""Strict reading: nothing is converted, and everything that is wrong is gathered with its path."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Literal

import numpy as np
import pytest
from attrs import field, frozen
from attrs.validators import matches_re

from petra_graph.spec.bounds import AtLeast, Length, OneOf
from petra_graph.spec.keys import key
from petra_graph.spec.strict_values import structure_as
from petra_graph.spec.value_types import as_mapping, describe


@frozen(kw_only=True)
class Inner:
    size: int = field(validator=AtLeast(1))
    word: Literal["one", "two"] = "one"


@frozen(kw_only=True)
class Outer:
    count: int = 1
    rate: float = field(default=0.5, validator=[AtLeast(0)])
    speed: float | None = key(None, "of a link", unit="bytes a second")
    flag: bool = False
    text: str = field(default="x", validator=Length(at_least=1))
    word: str = field(default="a", validator=OneOf("a", "b"))
    mail: str = field(default="a@b", validator=matches_re(".+@.+"))
    pair: tuple[int, int] = (1, 2)
    names: tuple[str, ...] = field(default=(), validator=Length(at_most=2))
    numbers: list[float] = field(factory=list)
    stages: Literal["per-block"] | tuple[tuple[str, ...], ...] = "per-block"
    devices: int | tuple[str, ...] = 1
    limit: int | None = field(default=None, validator=AtLeast(1))
    free: Mapping[str, Any] = field(factory=dict)
    sizes: Mapping[str, int] = field(factory=dict)
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    low: int = 0
    high: int = 1

    def __attrs_post_init__(self) -> None:
        if self.high <= self.low:
            raise ValueError("high must be above low")


def faults(**given):
    value, problems = structure_as(Outer, given, ("table",))
    assert (value is None) == bool(problems)
    return [f"{'.'.join(map(str, problem.path))}: {problem.message}" for problem in problems]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"count": 3}, 3),
        ({"rate": 3}, 3.0),
        ({"flag": True}, True),
        ({"pair": [3, 4]}, (3, 4)),
        ({"names": ["a"]}, ("a",)),
        ({"numbers": [1, 2.5]}, [1.0, 2.5]),
        ({"stages": [["a"], ["b", "c"]]}, (("a",), ("b", "c"))),
        ({"devices": ["cpu"]}, ("cpu",)),
        ({"devices": 2}, 2),
        ({"limit": 2}, 2),
        ({"free": {"a": {"b": 1}}}, {"a": {"b": 1}}),
        ({"inner": {"size": 1}}, Inner(size=1)),
        ({"many": [{"size": 1}, {"size": 2, "word": "two"}]}, (Inner(size=1), Inner(size=2, word="two"))),
    ],
)
def test_accepted_values(given, expected):
    value, problems = structure_as(Outer, given, ())
    assert problems == ()
    read = getattr(value, next(iter(given)))
    assert (read, type(read)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"count": "3"}, 'table.count: count in [table] must be an integer (got "3")'),
        ({"count": True}, "table.count: count in [table] must be an integer (got true)"),
        ({"count": 3.0}, "table.count: count in [table] must be an integer (got 3.0)"),
        ({"rate": "0.5"}, 'table.rate: rate in [table] must be a number (got "0.5")'),
        ({"rate": True}, "table.rate: rate in [table] must be a number (got true)"),
        ({"rate": float("nan")}, "table.rate: rate in [table] must be a finite number (got nan)"),
        ({"rate": -1}, "table.rate: rate in [table] must be at least 0 (got -1)"),
        ({"flag": 1}, "table.flag: flag in [table] must be true or false (got 1)"),
        ({"text": 1}, "table.text: text in [table] must be a string (got 1)"),
        ({"text": ""}, "table.text: text in [table] must not be empty"),
        ({"word": "c"}, 'table.word: word in [table] must be one of "a", "b" (got "c")'),
        (
            {"mail": "c"},
            "table.mail: mail in [table] is refused: 'mail' must match regex '.+@.+' ('c' doesn't) (got \"c\")",
        ),
        ({"pair": [1]}, "table.pair: pair in [table] must be a list of 2 integers (got [1])"),
        ({"pair": [1, "2"]}, 'table.pair.1: pair[1] in [table] must be an integer (got "2")'),
        ({"names": "ab"}, 'table.names: names in [table] must be a list of strings (got "ab")'),
        (
            {"names": ["a", "b", "c"]},
            'table.names: names in [table] must have at most 2 items (got ["a", "b", "c"])',
        ),
        (
            {"stages": "per-blok"},
            'table.stages: stages in [table] must be "per-block", or a list of lists of strings (got "per-blok")',
        ),
        ({"stages": [["a"], "b"]}, 'table.stages.1: stages[1] in [table] must be a list of strings (got "b")'),
        ({"stages": [["a", 1]]}, "table.stages.0.1: stages[0][1] in [table] must be a string (got 1)"),
        ({"devices": True}, "table.devices: devices in [table] must be an integer, or a list of strings (got true)"),
        ({"limit": 0}, "table.limit: limit in [table] must be at least 1 (got 0)"),
        ({"free": 3}, "table.free: free in [table] must be a table (got 3)"),
        ({"sizes": {"a": 1, "b": "x"}}, 'table.sizes.b: b in [table.sizes] must be an integer (got "x")'),
        ({"inner": 3}, "table.inner: inner in [table] must be a table (got 3)"),
        ({"inner": {}}, "table.inner.size: size is missing in [table.inner]"),
        ({"inner": {"size": 0}}, "table.inner.size: size in [table.inner] must be at least 1 (got 0)"),
        (
            {"inner": {"size": 1, "word": "ones"}},
            'table.inner.word: word in [table.inner] must be one of "one", "two" (got "ones")',
        ),
        ({"many": [{"size": 1}, {"sise": 1}]}, 'table.many.1.sise: unknown key "sise" in [table.many.1]'),
        ({"low": 3, "high": 2}, "table: [table]: high must be above low"),
        (
            {"text": "x" * 100, "count": "y" * 100},
            f'table.count: count in [table] must be an integer (got "{"y" * 56}...)',
        ),
    ],
)
def test_refused_values(given, expected):
    assert faults(**given) == [expected]


def test_everything_that_is_wrong_with_a_table():
    assert faults(count="3", rate=-1, inner={"siz": 1, "word": "three", "much": 1}, coun=1) == [
        'table.count: count in [table] must be an integer (got "3")',
        "table.rate: rate in [table] must be at least 0 (got -1)",
        'table.inner.word: word in [table.inner] must be one of "one", "two" (got "three")',
        'table.inner.siz: unknown key "siz" in [table.inner]',
        'table.inner.much: unknown key "much" in [table.inner]',
        'table.coun: unknown key "coun" in [table]',
    ]


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"count": "three"}, ""),
        ({"inner": {"size": 1, "word": "ones"}}, "did you mean 'one'? allowed: one, two"),
        ({"stages": "per-blok"}, "did you mean 'per-block'? allowed: per-block"),
        ({"coun": 3}, "did you mean 'count'? allowed: "),
    ],
)
def test_hints(given, hint):
    _, problems = structure_as(Outer, given, ("table",))
    assert problems[0].hint == hint or (hint and problems[0].hint.startswith(hint))


@pytest.mark.parametrize("kind", [set[int], PurePosixPath, Iterator[int]])
def test_a_type_that_toml_does_not_have_is_named(kind):
    with pytest.raises(TypeError, match="cannot be read from TOML"):
        describe(kind)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"count": np.int64(3)}, 3),
        ({"rate": np.float32(0.5)}, 0.5),
        ({"flag": np.bool_(True)}, True),
        ({"pair": [np.int32(3), 4]}, (3, 4)),
        ({"free": {"a": np.int64(1)}}, {"a": 1}),
    ],
)
def test_numbers_of_numpy_are_pythons(given, expected):
    """Code that computes options, an architecture's or a notebook's, was refused: `features must be an integer (got 16)`."""
    [name] = given
    value, problems = structure_as(Outer, given, ())
    assert problems == ()
    assert getattr(value, name) == expected
    assert "numpy" not in {type(one).__module__ for one in leaves(as_mapping(value))}


def leaves(value):
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return [value] if items is None else [leaf for item in items for leaf in leaves(item)]


def test_numbers_of_numpy_of_another_kind_are_still_refused():
    assert faults(count=np.float64(3.0)) == ["table.count: count in [table] must be an integer (got 3.0)"]

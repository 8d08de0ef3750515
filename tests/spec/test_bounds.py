"""Bounds: what they refuse, and in which words."""

from __future__ import annotations

import pytest
from attrs import fields, frozen
from attrs.validators import ge

from petra_graph.plugins.contract import option
from petra_graph.spec.bounds import AtLeast, AtMost, Each, GreaterThan, Length, LessThan, OneOf, OutOfBounds
from petra_graph.spec.strict_values import structure_as


@frozen(kw_only=True)
class Bounded:
    count: int = option("", default=1, validator=AtLeast(1))
    rate: float = option("", default=0.5, validator=GreaterThan(0))
    share: float = option("", default=0.5, validator=[AtLeast(0), LessThan(1)])
    part: float = option("", default=0.5, validator=[GreaterThan(0), AtMost(1)])
    limit: int | None = option("", default=None, validator=AtLeast(1))
    name: str = option("", default="a", validator=Length(at_least=1))
    code: str = option("", default="abc", validator=Length(at_least=2, at_most=3))
    pair: tuple[float, ...] = option("", default=(0.5, 0.5), validator=[Length(2), Each(AtLeast(0), LessThan(1))])
    fixed: tuple[int, int] = option("", default=(1, 1), validator=Each(AtLeast(1)))
    rows: tuple[tuple[int, ...], ...] = option("", default=(), validator=Each(Length(at_least=1), Each(AtLeast(0))))
    many: int | tuple[str, ...] = option("", default=1, validator=[AtLeast(1), Length(at_least=1)])
    mode: str = option("", default="x", validator=OneOf("x", "y"))
    streams: int = option("", default=1, validator=OneOf(1, 2))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("count", 0, "count in [t] must be at least 1 (got 0)"),
        ("rate", 0, "rate in [t] must be greater than 0 (got 0)"),
        ("share", 1, "share in [t] must be less than 1 (got 1)"),
        ("part", 1.5, "part in [t] must be at most 1 (got 1.5)"),
        ("limit", 0, "limit in [t] must be at least 1 (got 0)"),
        ("name", "", "name in [t] must not be empty"),
        ("code", "a", 'code in [t] must have at least 2 characters (got "a")'),
        ("code", "abcd", 'code in [t] must have at most 3 characters (got "abcd")'),
        ("pair", [0.5], "pair in [t] must have 2 items (got [0.5])"),
        ("pair", [0.5, 1], "pair[1] in [t] must be less than 1 (got 1)"),
        ("fixed", [0, 1], "fixed[0] in [t] must be at least 1 (got 0)"),
        ("rows", [[1], []], "rows[1] in [t] must not be empty"),
        ("rows", [[1], [2, -1]], "rows[1][1] in [t] must be at least 0 (got -1)"),
        ("many", 0, "many in [t] must be at least 1 (got 0)"),
        ("many", [], "many in [t] must not be empty"),
        ("mode", "z", 'mode in [t] must be one of "x", "y" (got "z")'),
        ("streams", 3, "streams in [t] must be one of 1, 2 (got 3)"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_the_rule(key, value, message):
    _, (problem,) = structure_as(Bounded, {key: value}, ("t",))
    assert problem.message == message


def test_every_item_out_of_bounds_is_a_problem_of_its_own():
    _, problems = structure_as(Bounded, {"pair": [-1, 2]}, ("t",))
    assert [(problem.path, problem.message) for problem in problems] == [
        (("t", "pair", 0), "pair[0] in [t] must be at least 0 (got -1)"),
        (("t", "pair", 1), "pair[1] in [t] must be less than 1 (got 2)"),
    ]


def test_a_misspelt_choice_has_a_hint():
    @frozen(kw_only=True)
    class Chosen:
        activation: str = option("", validator=OneOf("relu", "tanh"))

    _, (problem,) = structure_as(Chosen, {"activation": "relo"}, ())
    assert problem.hint == "did you mean 'relu'? allowed: relu, tanh"


def test_python_code_is_refused_by_the_name_of_the_field():
    with pytest.raises(OutOfBounds, match=r"^pair\[0\] must be at least 0 \(got -1\)$"):
        Bounded(pair=(-1, 0.5))


def test_bounds_as_they_are_listed():
    assert {one.name: one.validator.brief for one in fields(Bounded)} == {
        "count": ">= 1",
        "rate": "> 0",
        "share": ">= 0, < 1",
        "part": "> 0, <= 1",
        "limit": ">= 1",
        "name": "not empty",
        "code": "length >= 2, length <= 3",
        "pair": "length 2, each >= 0, < 1",
        "fixed": "each >= 1",
        "rows": "each not empty, each >= 0",
        "many": ">= 1, not empty",
        "mode": '"x" | "y"',
        "streams": "1 | 2",
    }


def _even(_: object, __: object, value: int) -> None:
    if value % 2:
        raise ValueError("must be even")


@frozen(kw_only=True)
class Foreign:
    size: int = option("", default=2, validator=[AtLeast(1), _even])
    other: int = option("", default=2, validator=ge(1))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": -1}, "size in [t] must be at least 1 (got -1)"),
        ({"size": 3}, "size in [t] must be even (got 3)"),
        ({"other": 0}, "other in [t] is refused: 'other' must be >= 1: 0 (got 0)"),
    ],
)
def test_other_validators_speak_for_themselves(given, message):
    _, (problem,) = structure_as(Foreign, given, ("t",))
    assert problem.message == message

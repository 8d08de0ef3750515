"""Bounds: what they refuse, in which words, and a JSON schema that refuses the same."""

from __future__ import annotations

import jsonschema
import pytest
from attrs import frozen
from attrs.validators import ge
from hypothesis import given
from hypothesis import strategies as st
from petra_graph_conformance.options_in_words import list_options

from petra_graph.kinds.declaration import option
from petra_graph.kinds.loss import LOSS, LossDeclaration
from petra_graph.kinds.plugin import Plugin
from petra_graph.spec.bounds import AtLeast, AtMost, Each, GreaterThan, Length, LessThan, OneOf, OutOfBounds
from petra_graph.spec.structure import structure_as
from petra_graph.spec.value_types import class_schema


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


SCHEMA = class_schema(Bounded, complete=True)


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
def test_a_value_out_of_bounds_is_refused_with_the_rule_and_by_the_schema(key, value, message):
    _, (problem,) = structure_as(Bounded, {key: value}, ("t",))
    assert problem.message == message
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({key: value}, SCHEMA)


numbers = st.one_of(st.integers(-2, 3), st.sampled_from([-0.5, 0.0, 0.5, 1.0, 1.5]))
values = st.recursive(numbers | st.text("xyz", max_size=4), lambda inner: st.lists(inner, max_size=3))


@given(st.sampled_from([*SCHEMA["properties"]]), values)
def test_reading_and_schema_accept_the_same_values(key, value):
    # 1.0 is an integer for JSON schema, and none for TOML.
    whole = "." not in repr(value)
    _, problems = structure_as(Bounded, {key: value}, ())
    accepted = jsonschema.Draft202012Validator(SCHEMA).is_valid({key: value})
    assert accepted >= (not problems)
    assert not whole or accepted == (not problems)


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


def shown_limits(cls: type) -> dict[str, str]:
    declaration = LossDeclaration(summary="A loss.", options=cls, build="a:b")
    plugin = Plugin(kind=LOSS, name="mine", distribution="", declaration=declaration)
    return {option.name: option.limits for option in list_options(plugin) if option.limits}


def test_bounds_as_they_are_listed():
    assert shown_limits(Bounded) == {
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


def test_other_validators_have_no_limits_in_the_schema_and_the_list():
    properties = class_schema(Foreign, complete=True)["properties"]
    assert properties == {
        "size": {"type": "integer", "minimum": 1, "default": 2},
        "other": {"type": "integer", "default": 2},
    }
    assert shown_limits(Foreign) == {"size": ">= 1"}

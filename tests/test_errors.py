"""Values in messages are TOML: what is shown may be pasted."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.errors import Problem, Where, shown

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]))
values = st.recursive(
    words | st.booleans() | st.integers(-(2**63), 2**63 - 1),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("größe", '"größe"'),
        ('a "b"', '"a \\"b\\""'),
        ("C:\\data\n", '"C:\\\\data\\n"'),
        ({"a b": [True]}, '{ "a b" = [true] }'),
    ],
)
def test_strings_are_escaped(value, expected):
    assert shown(value) == expected


@given(values)
def test_what_is_shown_reads_as_the_same_value(value):
    assert tomllib.loads(f"value = {shown(value)}") == {"value": value}


def test_a_message_is_never_longer_than_anybody_reads():
    where = Where(file="a.toml", line=1, column=1, text="y" * 100_000)
    lines = str(Problem(message="x" * 100_000, hint="z" * 100_000, where=where)).splitlines()
    assert max(map(len, lines)) < 5_000
    assert lines[0].startswith("a.toml:1:1: xxx")
    assert "… 96,000 characters …" in lines[0]
    assert "… 99,600 characters …" in lines[1]

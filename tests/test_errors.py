"""Values in messages are TOML: what is shown may be pasted."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.errors import shown

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

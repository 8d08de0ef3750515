"""Values in messages are TOML: what is shown may be pasted."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.errors import PluginError, Problem, SpecError, Where, at_path, printable, shown
from petra_graph.report.tables import aligned

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]))
values = st.recursive(
    words | st.booleans() | st.integers(-(2**63), 2**63 - 1),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)


@given(values)
def test_what_is_shown_reads_as_the_same_value(value):
    assert tomllib.loads(f"value = {shown(value)}") == {"value": value}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("größe\n\tλ → 你好 e\u0301", "größe\n\tλ → 你好 e\u0301"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\rb\x85c\x9bd", "a\\rb\\x85c\\x9bd"),
        ("\u202egnp.exe\u2069\ufeff\u200b", "\\u202egnp.exe\\u2069\\ufeff\\u200b"),
        ("\U000e0041\ud800", "\\U000e0041\\ud800"),
    ],
)
def test_what_controls_a_terminal_is_written_as_its_code(text, expected):
    assert printable(text) == expected


def test_no_part_of_a_message_controls_a_terminal_or_begins_another_problem():
    """A file's name may have a line end, and what follows it stood where problems and hints stand."""
    where = Where(file="\x1b[2J\nb.toml", line=1)
    assert str(Problem(message="a\n    help: b\x08", hint="c\u2066\nd", where=where)) == (
        "\\x1b[2J\\nb.toml:1: a\n          help: b\\x08\n    help: c\\u2066\n      d"
    )
    assert aligned([("a\nb  done", "x")]) == ["a\\nb  done  x"]


@pytest.mark.parametrize("kind", [PluginError, SpecError])
def test_a_path_for_problems_that_have_none(kind):
    problems = [
        Problem(message="one"),
        Problem(message="other", path=("data",)),
        Problem(message="third", where=Where(file="a")),
    ]
    with pytest.raises(kind) as raised, at_path("loss", "name"):
        raise kind(problems)
    assert [one.path for one in raised.value.problems] == [("loss", "name"), ("data",), ()]

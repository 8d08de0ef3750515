"""Every path that the standard parser sees has a position, and its text is there."""

import tomllib

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.spec.positions import find_spans
from petra_graph.spec.value_layers import paths

TEXT = """\
a.b = 1
"x y" = {c = 2, "d.e" = [1,
  2, {f = 3}]}  # a comment
[graph]
input = { shape = [3] }
[[graph.node]]
name = "stem"
[graph.node.options]
q.r = 1
[[graph.node]]
name = 'ä', # not the end
"""


def places(text):
    return {
        path: (f"{span.key.line}:{span.key.column}", f"{span.value.line}:{span.value.column}")
        for path, span in find_spans(text, "a.toml").items()
    }


def test_positions_of_every_form():
    assert places(TEXT.replace(", # not the end", "")) == {
        ("a",): ("1:1", "1:1"),
        ("a", "b"): ("1:3", "1:7"),
        ("x y",): ("2:1", "2:9"),
        ("x y", "c"): ("2:10", "2:14"),
        ("x y", "d.e"): ("2:17", "2:25"),
        ("x y", "d.e", 0): ("2:26", "2:26"),
        ("x y", "d.e", 1): ("3:3", "3:3"),
        ("x y", "d.e", 2): ("3:6", "3:6"),
        ("x y", "d.e", 2, "f"): ("3:7", "3:11"),
        ("graph",): ("4:2", "4:1"),
        ("graph", "input"): ("5:1", "5:9"),
        ("graph", "input", "shape"): ("5:11", "5:19"),
        ("graph", "input", "shape", 0): ("5:20", "5:20"),
        ("graph", "node"): ("6:9", "6:1"),
        ("graph", "node", 0): ("6:9", "6:1"),
        ("graph", "node", 0, "name"): ("7:1", "7:8"),
        ("graph", "node", 0, "options"): ("8:13", "8:1"),
        ("graph", "node", 0, "options", "q"): ("9:1", "9:1"),
        ("graph", "node", 0, "options", "q", "r"): ("9:3", "9:7"),
        ("graph", "node", 1): ("10:9", "10:1"),
        ("graph", "node", 1, "name"): ("11:1", "11:8"),
    }


def test_a_header_after_its_own_subtable_is_the_better_place():
    assert places("[a.b]\n[a]\n")[("a",)] == ("2:2", "2:1")


def test_columns_count_characters_and_carriage_returns_are_no_text():
    spans = find_spans('"ä" = { "ö" = 1 }\r\n', "a.toml")
    span = spans[("ä", "ö")]
    assert (span.key.column, span.value.column, span.key.text) == (9, 15, '"ä" = { "ö" = 1 }')


keys = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6)
leaves = st.one_of(
    st.integers(-(2**40), 2**40),
    st.booleans(),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8),
    st.dates(),
)
documents = st.dictionaries(
    keys,
    st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)),
    max_size=4,
)


@given(documents, st.booleans())
def test_every_path_has_a_position_whose_text_is_the_value(document, multiline):
    text = tomli_w.dumps(document, multiline_strings=multiline)
    values = tomllib.loads(text)
    spans = find_spans(text, "a.toml")
    assert set(spans) == set(paths(values))
    lines = text.split("\n")
    for path, span in spans.items():
        value = values
        for key in path:
            value = value[key]
        rest = lines[span.value.line - 1][span.value.column - 1 :]
        if isinstance(value, bool):
            assert rest.startswith("true" if value else "false")
        elif isinstance(value, int):
            assert tomllib.loads(f"x = {rest.rstrip(',').split(',')[0].split(' ')[0].rstrip('}]')}") == {"x": value}
        elif isinstance(value, str):
            assert rest[0] in "\"'"
        elif isinstance(value, dict | list):
            assert rest[0] in "[{"
        if isinstance(path[-1], str) and not isinstance(value, dict):
            assert lines[span.key.line - 1][span.key.column - 1 :].startswith((path[-1][0], '"', "'"))


@pytest.mark.parametrize("text", ["a = 1979-05-27T07:32:00Z\n", 'a = """\nx\n"""\nb = 2\n', "a = 0x1F\n", "# only\n"])
def test_every_form_of_value(text):
    assert set(find_spans(text, "a.toml")) == set(paths(tomllib.loads(text)))

"""Each key of a text has its line."""

from __future__ import annotations

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.spec.layers import find_lines, parse_source
from tests.support import ROOT

TEXT = '''\
# a = 1
"quoted key" = """
[not.a.table] # """ # a comment with = and [
point = 0.5
date = 1979-05-27 07:32:00
list = [ 1, # one
  "]",
  [2, { deep = 3 }],
]
[a.b]
c.d = { e = 1, f = ['x'] }
[[n]]
x = 1
[[n]]
[n.options]
y = '#'
'''
LINES = {
    ("quoted key",): 2, ("point",): 4, ("date",): 5, ("list",): 6, ("list", 0): 6, ("list", 1): 6, ("list", 2): 6,
    ("list", 2, 0): 6, ("list", 2, 1): 6, ("list", 2, 1, "deep"): 6, ("a",): 10, ("a", "b"): 10, ("a", "b", "c"): 11,
    ("a", "b", "c", "d"): 11, ("a", "b", "c", "d", "e"): 11, ("a", "b", "c", "d", "f"): 11, ("a", "b", "c", "d", "f", 0): 11,
    ("n",): 12, ("n", 0): 12, ("n", 0, "x"): 13, ("n", 1): 14, ("n", 1, "options"): 15, ("n", 1, "options", "y"): 16,
}  # fmt: skip


def test_the_line_of_every_path():
    assert find_lines(TEXT) == LINES
    assert find_lines(TEXT.replace("\n", "\r\n")) == LINES


@pytest.mark.parametrize("path", sorted(ROOT.glob("specs/**/*.toml")), ids=lambda path: path.stem)
def test_every_path_of_our_specs_has_a_line(path):
    source = parse_source(path.read_text(), path.name)
    assert set(source.lines) == set(inside(source.values))


def inside(value, path=()):
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from inside(item, (*path, key))


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=5)
values = st.recursive(
    st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda more: st.lists(more, max_size=3) | st.dictionaries(words, more, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(words, values, max_size=4))
def test_every_path_of_any_text_has_a_line(given_values):
    assert set(find_lines(tomli_w.dumps(given_values))) == set(inside(given_values))

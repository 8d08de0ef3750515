"""Texts that cannot be read say why and where; each key of one that can has its line."""

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.errors import SpecError
from petra_graph.spec.lines import find_lines
from petra_graph.spec.source import read_source
from tests.support import ROOT


def fault(name):
    with pytest.raises(SpecError) as caught:
        read_source(name)
    return str(caught.value)


def test_reads_values_and_lines(write):
    source = read_source(write("a.toml", "[run]\nepochs = 3\n"))
    assert source.values == {"run": {"epochs": 3}}
    assert str(source.where(("run", "epochs"))) == "a.toml:2"
    assert str(source.where(("nowhere",))) == "a.toml"


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"name = 'x'")))
    source = read_source("-")
    assert (source.values, source.file) == ({"name": "x"}, "<stdin>")


def test_byte_order_mark_is_no_content(here):
    (here / "a.toml").write_bytes(b"\xef\xbb\xbfname = 'x'\n")
    assert read_source("a.toml").values == {"name": "x"}


def test_files_that_cannot_be_read(write, here):
    write("quickstart.toml", "a = 1")
    assert fault("quickstrat.toml") == (
        "quickstrat.toml: cannot be read: No such file or directory\n    help: did you mean 'quickstart.toml'?"
    )
    (here / "folder").mkdir()
    assert fault("folder") == "folder: cannot be read: Is a directory"
    assert fault("/dev/zero") == "/dev/zero: more than 8 MiB"
    (here / "latin.toml").write_bytes(b'name = "x"\nnote = "caf\xe9"\n')
    assert fault("latin.toml") == "latin.toml:2: not UTF-8 text"
    assert fault(write("empty.toml", "  \n\n")).startswith("empty.toml: the file is empty\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[method]\nname = petra\n", "a.toml:2: invalid TOML: invalid value; text needs quotes"),
        ("[method]\nname = 1\nname = 2\n", "a.toml:3: invalid TOML: cannot overwrite a value"),
        ("[run\n", "a.toml:1: invalid TOML: expected ']' at the end of a table declaration"),
    ],
)
def test_invalid_toml(write, text, expected):
    assert fault(write("a.toml", text)) == expected


@pytest.mark.parametrize("value", ["[" * 3000 + "]" * 3000, "{a=" * 900 + "1" + "}" * 900])
def test_deep_nesting(write, value):
    assert "nested too deeply" in fault(write("a.toml", f"name = 'x'\n[run]\nseed = {value}\n"))


@pytest.mark.parametrize("part", ["a", '"a.\\""', "'#' "])
def test_a_key_is_measured_before_it_is_parsed(write, part):
    """A key of 100,000 parts took 90 seconds and 4 GB, and then had too many."""
    assert "nested too deeply" in fault(write("a.toml", ".".join([part] * 100_000) + " = 1"))


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
    ("quoted key",): 2, ("point",): 4, ("date",): 5, ("list",): 6, ("list", 0): 6, ("list", 1): 7, ("list", 2): 8,
    ("list", 2, 0): 8, ("list", 2, 1): 8, ("list", 2, 1, "deep"): 8, ("a",): 10, ("a", "b"): 10, ("a", "b", "c"): 11,
    ("a", "b", "c", "d"): 11, ("a", "b", "c", "d", "e"): 11, ("a", "b", "c", "d", "f"): 11, ("a", "b", "c", "d", "f", 0): 11,
    ("n",): 12, ("n", 0): 12, ("n", 0, "x"): 13, ("n", 1): 14, ("n", 1, "options"): 15, ("n", 1, "options", "y"): 16,
}  # fmt: skip


def test_the_line_of_every_path():
    assert find_lines(TEXT) == LINES
    assert find_lines(TEXT.replace("\n", "\r\n")) == LINES


@pytest.mark.parametrize("path", sorted(ROOT.glob("specs/**/*.toml")), ids=lambda path: path.stem)
def test_every_path_of_our_specs_has_a_line(path):
    source = read_source(str(path))
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
    import tomli_w

    assert set(find_lines(tomli_w.dumps(given_values))) == set(inside(given_values))

"""Texts that cannot be read say why, where, and what to do."""

import io
import sys

import pytest

from petra_graph.errors import SpecError
from petra_graph.spec.overrides import assignments, parse_override
from petra_graph.spec.source import read_source


def fault(name):
    with pytest.raises(SpecError) as caught:
        read_source(name)
    return str(caught.value)


def set_fault(text):
    with pytest.raises(SpecError) as caught:
        parse_override(text)
    return str(caught.value)


def test_reads_values_and_positions(write):
    source = read_source(write("a.toml", "[run]\nepochs = 3\n"))
    assert source.values == {"run": {"epochs": 3}}
    assert str(source.where(("run", "epochs"))) == "a.toml:2:10"
    assert str(source.where(("run", "epochs"), at_key=True)) == "a.toml:2:1"
    assert str(source.where(("nowhere",))) == "a.toml"


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"name = 'x'")))
    source = read_source("-")
    assert (source.values, source.file) == ({"name": "x"}, "<stdin>")


def test_byte_order_mark_is_no_content(here):
    (here / "a.toml").write_bytes(b"\xef\xbb\xbfname = 'x'\n")
    assert read_source("a.toml").values == {"name": "x"}


def test_missing_file_with_a_close_neighbour(write):
    write("quickstart.toml", "a = 1")
    assert fault("quickstrat.toml") == (
        """\
quickstrat.toml: no such file
    help: did you mean 'quickstart.toml'?"""
    )


def test_missing_folder(here):
    assert fault("specs/a.toml") == (
        """\
specs/a.toml: no such file
    help: there is no folder 'specs' either"""
    )


def test_a_home_that_does_not_exist(here):
    assert fault("~of-nobody/a.toml") == (
        """\
~of-nobody/a.toml: no such file
    help: there is no folder '~of-nobody' either"""
    )


def test_folder(write):
    write("specs/a.toml", "a = 1")
    assert fault("specs") == (
        """\
specs: a folder, not a file
    help: TOML files there: a.toml"""
    )


@pytest.mark.parametrize("text", ["", "  \n\n"])
def test_empty(write, text):
    assert fault(write("a.toml", text)) == (
        """\
a.toml: the file is empty
    help: a specification needs [data] and one of [graph] and [architecture]"""
    )


def test_not_utf8(here):
    (here / "a.toml").write_bytes(b'name = "x"\nnote = "caf\xe9"\n')
    assert fault("a.toml") == (
        """\
a.toml:2: not UTF-8 text (byte 0xe9)
    help: a specification is a TOML file; save it as UTF-8"""
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[method]\nname = petra\n",
            """\
a.toml:2:8: invalid TOML: invalid value
    name = petra
    help: text needs quotes: name = "petra\"""",
        ),
        (
            "[method]\nname = 1\nname = 2\n",
            """\
a.toml:3:9: invalid TOML: cannot overwrite a value
    name = 2
    help: each table and each key may occur only once""",
        ),
        (
            "[run]\nepochs = [1,\n",
            "a.toml:3:1: invalid TOML: invalid value",
        ),
        ("[run\n", "a.toml:1:5: invalid TOML: expected ']' at the end of a table declaration\n    [run"),
    ],
)
def test_invalid_toml(write, text, expected):
    assert fault(write("a.toml", text)) == expected


def test_an_endless_file_is_not_read_to_its_end():
    assert fault("/dev/zero") == (
        """\
/dev/zero: more than 8 MiB, and specifications are shorter
    help: give the name of a TOML file"""
    )


@pytest.mark.parametrize("value", ["[" * 3000 + "]" * 3000, "{a=" * 900 + "1" + "}" * 900])
def test_deep_nesting_has_a_line(write, value):
    message = fault(write("a.toml", f"name = 'x'\n[run]\nseed = {value}\n"))
    assert message.startswith(
        "a.toml:3:8: nested too deeply: more than 100 tables and arrays in one another\n    seed = "
    )


@pytest.mark.parametrize(
    "line", ["{dots} = 1", "[{dots}]", "[[{dots}]]", "x = {{ {dots} = 1 }}", "[run]\n{dots}.x = {{}}"]
)
def test_a_key_of_many_parts_has_a_line(write, line):
    message = fault(write("a.toml", line.format(dots=".".join("a" * 1000))))
    assert "nested too deeply" in message
    assert len(message) < 600


def test_a_dozen_levels_are_read(write):
    assert read_source(write("a.toml", f"{'.'.join('a' * 12)} = [[[1]]]")).values["a"]


@pytest.mark.parametrize("part", ["a", '"a.\\""', "'#' "])
def test_a_key_is_measured_before_it_is_parsed(write, part):
    """A key of 100,000 parts took 90 seconds and 4 GB, and then had too many."""
    assert "nested too deeply" in fault(write("a.toml", ".".join([part] * 100_000) + " = 1"))
    assert "nested too deeply" in set_fault(".".join([part] * 30_000) + "=1")


def test_points_in_texts_and_numbers_make_no_key(write):
    numbers = ", ".join(["0.5"] * 200)
    assert read_source(write("a.toml", f"x = [{numbers}] # {'. ' * 200}\ny = '{'.' * 200}'\n")).values["x"]


def test_integers_that_python_does_not_write(write):
    """5,000 hexadecimal digits ended in a traceback of the message about them."""
    digits = "f" * 5_000
    message = fault(write("a.toml", f"name = 'x'\n[run]\nseed = [1, 0x{digits}]\n"))
    assert message.startswith("a.toml:3:12: an integer of more than 300 digits\n")
    assert set_fault(f"run.seed=0x{digits}").endswith(": an integer of more than 300 digits")
    with pytest.raises(SpecError, match=r"run.seed is an integer of more than 300 digits"):
        assignments({"run.seed": int(digits, 16)})

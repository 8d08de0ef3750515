"""The format that a file states: what is refused, what is to be done, and that no rename is forgotten."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from petra_graph_authoring.spec_schema import spec_schema

from petra_graph.errors import SpecError
from petra_graph.registry.registry import Registry, discover
from petra_graph.spec.format_versions import FORMAT, REMOVALS, RENAMES, format_problem, what_became_of
from petra_graph.spec.load_spec import dump, load
from petra_graph.spec.value_types import Schema, class_schema
from tools.spec_reference import DISTRIBUTIONS

KEYS = Path(__file__).with_name("format_keys")
"""All keys of each format. A key that is new joins the current list; a list of a former format never changes."""
REST = '[architecture]\nname = "revnet"\n[data]\nname = "digits"\n'


def keys(schema: Schema, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, value in schema.get("properties", {}).items():
        yield ".".join((*path, name))
        named = value.get("additionalProperties")
        yield from keys(named, (*path, name, "NAME")) if isinstance(named, dict) else ()
        yield from keys(value if "properties" in value else value.get("items", {}), (*path, name))


CURRENT = set(keys(class_schema(discover().only(DISTRIBUTIONS).spec_class, complete=False)))
REMOVED = {".".join(path) for path in REMOVALS}


def test_the_current_formats_list_is_complete():
    assert set((KEYS / f"{FORMAT}.txt").read_text().split()) == CURRENT | REMOVED, (
        "a key that is renamed needs a new format, with its rename in spec/format_versions.py and a list of its own; one that is removed stays; "
        f"a new key joins {FORMAT}.txt"
    )


@pytest.mark.parametrize("number", range(1, FORMAT + 1))
def test_every_key_that_a_format_had_is_there_or_was_renamed(number):
    for key in (KEYS / f"{number}.txt").read_text().split():
        name = key
        for old, (new, since) in RENAMES.items():
            if since > number and ".".join(old) == name:
                name = ".".join(new)
        assert name in CURRENT | REMOVED, f"{key} of format {number} is gone, and no rename says where"


def test_a_rename_belongs_to_a_format_between_two_lists():
    for old, (new, since) in RENAMES.items():
        before, after = ((KEYS / f"{number}.txt").read_text().split() for number in (since - 1, since))
        assert ".".join(old) in before
        assert ".".join(new) in after
        assert ".".join(old) not in after


def problems(path: str, *overrides: str) -> str:
    try:
        loaded = load(path, overrides)
    except SpecError as error:
        return "\n".join(map(str, error.problems))
    return "\n".join(map(str, loaded.problems))


@pytest.mark.parametrize("stated", [f"format = {FORMAT}\n", ""])
def test_the_current_format_need_not_be_stated(write, stated):
    write("a.toml", stated + REST)
    loaded = load("a.toml")
    assert loaded.problems == ()
    assert "format" not in loaded.values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'format = 1\nprecision.wire_dtype = "int8"\n',
            """\
a.toml:1:10: format 1 is older than 2, which this version of petra-graph reads
    format = 1
    help: rename precision.wire_dtype to precision.channel_dtype, then set format = 2""",
        ),
        (
            "format = 1\n",
            """\
a.toml:1:10: format 1 is older than 2, which this version of petra-graph reads
    format = 1
    help: set format = 2""",
        ),
        (
            "format = 99\nunheard = 1\n",
            """\
a.toml:1:10: format 99 is newer than 2, which this version of petra-graph reads
    format = 99
    help: upgrade petra-graph""",
        ),
        (
            'format = "2"\n',
            """\
a.toml:1:10: format must be an integer (got "2")
    format = "2"
    help: this version of petra-graph reads format 2""",
        ),
        (
            "format = true\n",
            """\
a.toml:1:10: format must be an integer (got true)
    format = true
    help: this version of petra-graph reads format 2""",
        ),
        (
            "format = 0\n",
            """\
a.toml:1:10: format must be at least 1 (got 0)
    format = 0
    help: this version of petra-graph reads format 2""",
        ),
        (
            'precision.wire_dtype = "int8"\n',
            """\
a.toml:1:11: unknown key "wire_dtype" in [precision]
    precision.wire_dtype = "int8"
    help: was renamed to channel_dtype in format 2""",
        ),
        (
            "method.split_backward = true\n",
            """\
a.toml:1:8: unknown key "split_backward" in [method]
    method.split_backward = true
    help: split backwards were measured, gained 0.03 nats at most, and were removed: a backward is one operation; leave the key out, and \
set schedule = "auto" for the least delay at full speed""",
        ),
    ],
)
def test_other_formats_are_refused_with_what_to_do(write, text, expected):
    write("a.toml", text + REST)
    assert problems("a.toml") == expected


@pytest.mark.parametrize(
    "table", ["[method]\nsplit_backward = false\n", '[method]\nname = "petra"\nsplit_backward = false\n']
)
def test_a_removed_key_that_says_how_things_are_is_read_as_nothing(write, table):
    """As in every resolved specification of before."""
    write("a.toml", REST + table)
    loaded = load("a.toml")
    assert loaded.problems == ()
    assert loaded.spec == load("a.toml", ["method.name=petra"]).spec
    assert "split_backward" not in dump(loaded.spec)


def test_the_changes_named_make_the_text_one_of_the_current_format(write):
    old = 'format = 1\nprecision.wire_dtype = "int8"\n' + REST
    write("a.toml", old.replace("wire_dtype", "channel_dtype").replace("format = 1", "format = 2"))
    loaded = load("a.toml")
    assert loaded.spec is not None
    assert loaded.spec.precision.channel_dtype == "int8"


def test_each_file_states_its_own_format(write):
    write("base.toml", "format = 1\n" + REST)
    write("a.toml", 'extends = "base.toml"\nformat = 3\n')
    first, second = (line for line in problems("a.toml").splitlines() if "petra-graph reads" in line)
    assert first.startswith("a.toml:2:10: format 3 is newer")
    assert second.startswith("base.toml:1:10: format 1 is older")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("format=2", ""),
        ("format=3", "--set format=3: format 3 is newer than 2, which this version of petra-graph reads"),
        ("format=1", "--set format=1: format 1 is older than 2, which this version of petra-graph reads"),
        ("format=x", '--set format=x: format must be an integer (got "x")'),
        ("precision.wire_dtype=int8", '--set precision.wire_dtype=int8: unknown key "wire_dtype" in [precision]'),
    ],
)
def test_set_states_the_format_of_what_is_set(write, override, expected):
    write("a.toml", REST)
    assert problems("a.toml", override).partition("\n")[0] == expected


def test_a_key_that_moved_to_another_table_is_named_with_it(monkeypatch):
    from petra_graph.spec import format_versions

    moved = {**RENAMES, ("run", "transport"): (("channels", "kind"), 3)}
    monkeypatch.setattr(format_versions, "RENAMES", moved)
    monkeypatch.setattr(format_versions, "FORMAT", 3)
    assert what_became_of(("run", "transport")) == "was renamed to channels.kind in format 3"
    problem = format_problem(1, None, {"run": {"transport": "auto"}, "precision": {"wire_dtype": "int8"}})
    assert problem is not None
    assert problem.hint == (
        "rename precision.wire_dtype to precision.channel_dtype, then rename run.transport to channels.kind, "
        "then set format = 3"
    )


def test_what_is_written_states_the_current_format(write):
    write("a.toml", REST)
    spec = load("a.toml").spec
    assert spec is not None
    assert tomllib.loads(dump(spec))["format"] == FORMAT


def test_the_schema_knows_the_current_format():
    schema = spec_schema(Registry(entries=()))
    validator = jsonschema.Draft202012Validator({"properties": {"format": schema["properties"]["format"]}})
    assert [stated for stated in (1, 2, 3, "2") if validator.is_valid({"format": stated})] == [FORMAT]

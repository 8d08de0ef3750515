"""The tables of the pages are those that the schema, the specs and the kinds give, and the generator notices what differs."""

from __future__ import annotations

import json

import pytest
from petra_graph_authoring.spec_schema import spec_schema
from petra_graph_conformance.all_checks import CHECKS

from petra_graph.registry.registry import discover
from tools.spec_reference import PAGES, generated

PAGE_TEXT, KIT_TEXT = (page.read_text() for page in PAGES)


@pytest.mark.parametrize("text", [PAGE_TEXT, KIT_TEXT], ids=["specs", "promises"])
def test_the_page_is_current(text):
    assert generated(text) == text, "run `python -m tools.spec_reference --write`"


def test_every_promise_has_a_row_with_a_sentence():
    rows = [line.split(" | ") for line in KIT_TEXT.splitlines()]
    said = {(row[0].removeprefix("| "), row[1]): row[2] for row in rows if len(row) == 4}
    assert all(said[one.kind.noun, promise.name].endswith(".") for one in CHECKS for promise in one.promises)


def test_changed_cells_are_put_right():
    changed = PAGE_TEXT
    for old, new in (("| `epochs` | integer ≥ 1, ≤ 1000000000 |", "| `epochs` | integer |"), ("62,314", "62,315")):
        assert PAGE_TEXT.count(old) == 1
        changed = changed.replace(old, new)
    assert generated(changed) == PAGE_TEXT


def test_every_key_and_every_option_has_a_row():
    rows = {line.split("`")[1] for line in PAGE_TEXT.splitlines() if line.startswith("| `")}
    assert set(keys_of(json.loads(json.dumps(spec_schema(discover().only(["petra-graph"])))))) <= rows


def keys_of(schema):
    """Every name under `properties` of a schema but those of tables, which are sections."""
    match schema:
        case dict():
            for key, value in schema.items():
                if key == "properties":
                    yield from (name for name, inner in value.items() if is_key(inner))
                if key != "if":
                    yield from keys_of(value)
        case list():
            for value in schema:
                yield from keys_of(value)


def is_key(schema):
    """Whether a property is a key with a type of its own; conditions on plugins repeat `options` as tables, and arrays of tables are sections."""
    return bool(schema.keys() & {"type", "enum", "anyOf"}) and "properties" not in schema.get("items", schema)

"""A plan that was saved: read, refused or shown, whatever has become of it; and the one description of its keys."""

from __future__ import annotations

import copy
import json
import math
import operator
from contextlib import suppress
from functools import cache, reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.errors import SpecError
from petra_graph.planning.plan_spec import plan
from petra_graph.program.plan_document import SHAPE, Later, faults, read_document
from petra_graph.report.plan_text import plan_text
from tests.support import ROOT
from tests.support.plan_documents import three_stages

HINT = "    help: save one with `petra-graph plan SPEC --json`"


@pytest.mark.parametrize(
    ("version", "expected", "remedy"),
    [
        (
            2,
            "plan.json is a plan of version 2, and this petra-graph reads version 1",
            "upgrade petra-graph, or save one",
        ),
        (0, "plan.json is a plan of version 0, and this petra-graph reads version 1", "save one"),
        ("1", 'plan.json is a plan of version "1", and this petra-graph reads version 1', "save one"),
        (None, "plan.json is a plan of no version, and this petra-graph reads version 1", "save one"),
    ],
)
def test_a_plan_of_another_version_is_refused(version, expected, remedy):
    with pytest.raises(SpecError) as caught:
        read_document(json.dumps(three_stages() | {"version": version}), "plan.json")
    message, hint = str(caught.value).split("\n")
    assert message == expected
    assert hint.strip().startswith(f"help: {remedy}")


def paths(value, path=()):
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*path, key))


WRONG = [None, 0, -1, True, "x", [], {}, [1], {"a": 1}, math.nan, math.inf, 10**400]


@cache
def real_plan():
    """A plan as it is saved, with every key that there is, and its paths."""
    document = plan(str(ROOT / "specs" / "quickstart.toml")).document(with_timeline=True)
    del document["timeline"][20:], document["nodes"][0]["outputs"][1:]
    return document, sorted(paths(document), key=str)


@given(st.lists(st.tuples(st.integers(0), st.sampled_from([..., *WRONG])), min_size=1, max_size=3))
def test_a_damaged_plan_is_refused_or_shown(changes):
    """Whatever is missing or of another type: no view on a terminal meets a key or a type that it does not expect."""
    whole, every_path = real_plan()
    document = copy.deepcopy(whole)
    for place, value in changes:
        *above, last = every_path[place % len(every_path)]
        with suppress(LookupError, TypeError):  # an earlier change has taken it away
            inside = reduce(operator.getitem, above, document)
            inside[last] = value
            if value is ...:
                del inside[last]
    try:
        read = read_document(json.dumps(document), "plan.json")
    except SpecError:
        return
    assert plan_text(read, width=120)


def undescribed(value, shape, path=""):
    """Paths of keys that a document has and its shape does not name."""
    shape = shape.shape if isinstance(shape, Later) else shape
    if isinstance(shape, list):
        for item in value:
            yield from undescribed(item, shape[0], path)
    elif isinstance(shape, dict):
        yield from (f"{path}.{key}" for key in value.keys() - shape.keys())
        for key in value.keys() & shape.keys():
            yield from undescribed(value[key], shape[key], f"{path}.{key}")


def test_a_real_plan_has_the_keys_that_are_described_and_no_others():
    document = plan(str(ROOT / "specs" / "quickstart.toml")).document(with_timeline=True)
    assert list(faults(document, SHAPE, "the plan")) == []
    assert sorted(undescribed(document, SHAPE)) == []
    later = [key for key, shape in SHAPE.items() if isinstance(shape, Later) and key not in document]
    assert later == []


def test_what_is_damaged_is_named_with_its_place():
    document = copy.deepcopy(real_plan()[0])
    del document["stages"][2]["depth"]
    document["devices"][0]["bytes"]["total"] = "much"
    document["stages"][0]["bytes"]["graphs"] = 0.5
    assert sorted(faults(document, SHAPE, "the plan")) == [
        "devices[0].bytes.total is not a whole number",
        "stages[0].bytes.graphs is not a whole number",
        "stages[2] has no depth",
    ]

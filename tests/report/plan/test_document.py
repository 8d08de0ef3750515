"""Reading a plan that was saved."""

from __future__ import annotations

import copy
import json
import math
import operator
from contextlib import suppress
from functools import cache, partial, reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.errors import SpecError
from petra_graph.planning.plan import plan
from petra_graph.program.plan_document import faults
from petra_graph.report.plan.compare import diff_text
from petra_graph.report.plan.document import bytes_by_part, read_document, stage_edges
from petra_graph.report.plan.formats import dot, mermaid, trace
from petra_graph.report.plan.html import html
from petra_graph.report.plan.terminal import plan_text
from tests.support import ROOT
from tests.support.plan_documents import branches, three_stages

HINT = "    help: save one with `petra-graph plan SPEC --format json`"


def test_a_saved_plan_is_shown_as_it_was():
    document = three_stages()
    assert plan_text(read_document(json.dumps(document), "plan.json"), width=120) == plan_text(document, width=120)


def test_more_keys_than_known_are_welcome():
    document = three_stages() | {"later": 1}
    assert read_document(json.dumps(document), "plan.json") == document


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ("plan.json is no JSON: Expecting value: line 1 column 1 (char 0)", "x"),
        ("plan.json is no plan: it holds a list", "[]"),
        (
            "plan.json is no plan: it has no stages, timing",
            json.dumps({key: value for key, value in three_stages().items() if key not in {"stages", "timing"}}),
        ),
    ],
)
def test_what_is_no_plan(expected, text):
    with pytest.raises(SpecError) as caught:
        read_document(text, "plan.json")
    assert str(caught.value) == f"{expected}\n{HINT}"


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


def test_what_the_total_has_beyond_the_known_parts_is_other():
    counts = {"parameters": 10, "working": 5, "data": 7, "total": 22}
    assert bytes_by_part(counts) == {
        "parameters": 10,
        "gradients": 0,
        "optimizer": 0,
        "input_buffer": 0,
        "parameter_buffer": 0,
        "graphs": 0,
        "working": 5,
        "channels": 0,
        "other": 7,
    }


def test_which_stage_sends_to_which():
    assert stage_edges(branches()) == [(1, 2), (1, 3), (1, 5), (2, 4), (3, 4), (4, 5)]


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


VIEWS = (partial(plan_text, width=120), mermaid, dot, trace, html)


@given(st.lists(st.tuples(st.integers(0), st.sampled_from([..., *WRONG])), min_size=1, max_size=3))
def test_a_damaged_plan_is_refused_or_shown(changes):
    """Whatever is missing or of another type: no view meets a key or a type that it does not expect."""
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
    assert all(view(read) for view in VIEWS)
    assert diff_text(read, whole, width=120)


def test_a_plan_from_before_some_keys_is_shown():
    document, _ = real_plan()
    older = copy.deepcopy(document)
    del older["run"], older["replicas"], older["timing"]["exposed_communication"], older["devices"][0]["capacity_bytes"]
    read = read_document(json.dumps(older), "plan.json")
    assert all(view(read) for view in VIEWS)
    older["timing"]["exposed_communication"] = {"all_reduce": 0.1}
    with pytest.raises(SpecError, match=r"plan\.json is damaged: timing\.exposed_communication has no links"):
        read_document(json.dumps(older), "plan.json")


def test_a_real_plan_is_of_the_shape():
    document = plan(str(ROOT / "specs" / "quickstart.toml")).document(with_timeline=True)
    assert list(faults(document)) == []
    del document["stages"][2]["depth"]
    document["devices"][0]["bytes"]["total"] = "much"
    found = list(faults(document))
    assert "stages[2] has no depth" in found
    assert "devices[0].bytes.total is not a whole number" in found

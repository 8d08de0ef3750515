"""A plan on terminals: of any width, with colours or without, in full or shortened."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

from petra_graph.report.plan.plan_on_terminal import plan_text
from petra_graph.report.plan.short_labels import graph_lines
from petra_graph.report.text_tables import bar
from tests.support.plan_documents import branches, hostile, revnet50, three_stages

WIDTHS = [60, 80, 100, 120, 200]
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def all_texts(width: int, colour: bool = False) -> list[str]:
    plans = [three_stages(), branches(), revnet50(), hostile()]
    return [
        *(plan_text(plan, width=width, colour=colour) for plan in plans),
        *(plan_text(plan, width=width, colour=colour, verbose=True) for plan in plans),
    ]


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_terminal(width):
    for text in all_texts(width):
        assert max(map(cell_len, text.splitlines())) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_colours_are_all_that_colour_adds(width):
    for plain, coloured in zip(all_texts(width), all_texts(width, colour=True), strict=True):
        assert "\x1b" not in plain
        assert "\x1b[" in coloured
        stripped = [line.rstrip() for line in ESCAPE.sub("", coloured).splitlines()]
        assert stripped == plain.splitlines()


@pytest.mark.parametrize("width", WIDTHS)
def test_every_stage_of_eighteen_is_shown_with_its_memory(width):
    text = plan_text(revnet50(), width=width, stages=True)
    for stage in revnet50()["stages"]:
        total = f"{stage['bytes']['total'] / 2**20:.1f}"
        assert re.search(rf"^ *{stage['index']} .* {re.escape(total)}$", text, re.MULTILINE), stage["index"]


def test_tables_follow_by_themselves_where_they_are_short():
    """Twelve rows, and the terminal's width."""
    headings = {line.partition(" ")[0] for line in plan_text(branches(), width=80).splitlines()}
    assert {"stages", "devices", "assumptions"} <= headings
    assert "\nstages\n" not in plan_text(branches(), width=60), "it is wider"
    assert "\nstages\n" not in plan_text(revnet50(), width=200), "it is longer"


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({}, ""),
        (
            {"left.0": "input", "left.1": "input", "body.1": "graph"},
            "nodes keep input: stem, left.0-1, join, merge; nothing: left.2, right.0, body.0; graph: body.1",
        ),
    ],
)
def test_what_nodes_keep_is_said_if_those_of_a_kind_differ(own, said):
    found = branches()
    usual = {"reversible": "nothing", "buffered": "input", "head": None}
    nodes = [{**node, "keeps": own.get(node["name"], usual[node["kind"]])} for node in found["nodes"]]
    text = plan_text({**found, "nodes": nodes}, width=120)
    assert said in text
    assert bool(said) == ("nodes keep" in text)


def test_what_is_asked_for_is_whole():
    text = plan_text(revnet50(), width=80, stages=True)
    assert "parameters" in text
    assert "paper's accounting" not in text
    everything = plan_text(revnet50(), width=80, verbose=True)
    for part in ("\ngraph", "\nstages", "\ndevices", "paper's accounting", "  - links cost nothing"):
        assert part in everything


def test_assumptions_are_counted_where_they_are_not_listed():
    text = plan_text(branches(), width=80)
    assert "assumptions   2: see --verbose, and petra_graph/compiler/README.md#assumptions\n" in text
    assert "links cost nothing" not in text
    assert "assumptions" not in plan_text(branches() | {"assumptions": []}, width=80)


@pytest.mark.parametrize("colour", [False, True])
def test_the_environment_changes_nothing(monkeypatch, colour):
    before = plan_text(revnet50(), width=80, colour=colour)
    for name, value in {"COLUMNS": "40", "FORCE_COLOR": "1", "TERM": "dumb", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    assert plan_text(revnet50(), width=80, colour=colour) == before


def test_names_are_taken_as_they_are():
    text = plan_text(hostile(), width=200, verbose=True)
    for name in ("[red]bold[/red]", "[link]", "<img onerror=x> [red]warn", "日本語 層", "<i>x</i> [bold]"):
        assert name in text


def test_a_long_plan_has_its_table_where_that_is_asked_for(two_hundred):
    assert len(plan_text(two_hundred, width=80).splitlines()) < 20
    text = plan_text(two_hundred, width=200, stages=True)
    assert len(re.findall(r"^ *\d+ +(?:stem|layer|down|head)", text, re.MULTILINE)) == 200


def test_a_limit_that_is_too_low_is_marked():
    plan = three_stages()
    plan["devices"][0]["memory_bytes"] = 2**20
    assert re.search(r"^cpu:0 .*██████████ .*1 MiB, too little$", plan_text(plan, width=80, verbose=True), re.MULTILINE)


def test_a_graph_with_branches_in_words():
    assert graph_lines(branches()["nodes"]) == [
        "stem → left.0-2",
        "right.0 reads stem",
        "join reads left.2, right.0 → body.0-1",
        "merge reads stem, body.1 → head",
    ]


def test_many_branches_are_cut_short():
    nodes = [{"name": "stem", "inputs": []}, *({"name": f"n{i}", "inputs": ["stem"]} for i in range(40))]
    lines = graph_lines(nodes)
    assert len(lines) == 13
    assert lines[-1] == "… 28 more lines"


@pytest.mark.parametrize(
    ("expected", "share"), [("····", 0.0), ("██··", 0.5), ("█▏··", 0.28), ("████", 1.0), ("████", 7.0)]
)
def test_bars(expected, share):
    assert bar(share, 4) == expected

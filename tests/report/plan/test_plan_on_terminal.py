"""A plan on terminals: of any width, with colours or without, in full or shortened."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

from petra_graph.report.plan.plan_comparison import compare_text, diff_text, scale_text
from petra_graph.report.plan.plan_on_terminal import plan_text
from petra_graph.report.plan.short_labels import graph_lines
from petra_graph.report.text_tables import bar
from tests.support.plan_documents import branches, comparison, hostile, regrouped, revnet50, scaling, three_stages

WIDTHS = [60, 80, 100, 120, 200]
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def all_texts(width: int, colour: bool = False) -> list[str]:
    plans = [three_stages(), branches(), revnet50(), hostile()]
    return [
        *(plan_text(plan, width=width, colour=colour) for plan in plans),
        compare_text(comparison(), width=width, colour=colour),
        scale_text(scaling(), width=width, colour=colour),
        diff_text(three_stages(), regrouped(), width=width, colour=colour),
    ]


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_terminal(width):
    for text in all_texts(width):
        assert max(map(cell_len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [60, 80])
def test_no_column_of_a_comparison_is_cut(width):
    made = comparison()
    for row in made["rows"]:
        row["method"] = "delayed-reconstructed"
    assert "…" not in compare_text(made, width=width)


@pytest.mark.parametrize("width", WIDTHS)
def test_colours_are_all_that_colour_adds(width):
    for plain, coloured in zip(all_texts(width), all_texts(width, colour=True), strict=True):
        assert "\x1b" not in plain
        assert "\x1b[" in coloured
        stripped = [line.rstrip() for line in ESCAPE.sub("", coloured).splitlines()]
        assert stripped == plain.splitlines()


@pytest.mark.parametrize("width", WIDTHS)
def test_every_stage_of_eighteen_is_shown_with_its_memory(width):
    text = plan_text(revnet50(), width=width)
    for stage in revnet50()["stages"]:
        total = f"{stage['bytes']['total'] / 2**20:.1f}"
        assert re.search(rf"^ *{stage['index']} .* {re.escape(total)}$", text, re.MULTILINE), stage["index"]


@pytest.mark.parametrize("colour", [False, True])
def test_the_environment_changes_nothing(monkeypatch, colour):
    before = plan_text(revnet50(), width=80, colour=colour)
    for name, value in {"COLUMNS": "40", "FORCE_COLOR": "1", "TERM": "dumb", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    assert plan_text(revnet50(), width=80, colour=colour) == before


def test_names_are_taken_as_they_are():
    text = plan_text(hostile(), width=200)
    for name in ("[red]bold[/red]", "[link]", "<img onerror=x> [red]warn", "日本語 層", "<i>x</i> [bold]"):
        assert name in text


def test_a_long_plan_is_shortened_and_says_how_to_see_the_rest(two_hundred):
    text = plan_text(two_hundred, width=80)
    assert "… 184 more" in text
    assert "--stages all" in text
    assert len(text.splitlines()) < 150
    assert re.search(r"^ +1 +stem ", text, re.MULTILINE)
    assert re.search(r"^ +200 +head ", text, re.MULTILINE)


def test_a_long_plan_in_full(two_hundred):
    text = plan_text(two_hundred, width=200, all_stages=True)
    assert "more" not in text
    assert len(re.findall(r"^ *\d+ +(?:stem|layer|down|head)", text, re.MULTILINE)) == 200


def test_the_heaviest_and_the_slowest_stage_are_never_left_out(two_hundred):
    stages = [dict(stage) for stage in two_hundred["stages"]]
    stages[100]["bytes"] = stages[100]["bytes"] | {"total": 2**40}
    stages[120]["seconds"] = {"forward": 1.0, "backward": 2.0}
    text = plan_text(two_hundred | {"stages": stages}, width=120)
    assert re.search(r"^ +101 +down2|^ +101 +layer", text, re.MULTILINE)
    assert re.search(r"^ +121 +layer", text, re.MULTILINE)
    assert re.findall(r"… \d+ more", text)[:3] == ["… 92 more", "… 19 more", "… 71 more"]


def test_a_limit_that_is_too_low_is_marked():
    plan = three_stages()
    plan["devices"][0]["memory_bytes"] = 2**20
    assert re.search(r"^cpu:0 .*██████████ .*1 MiB, too little$", plan_text(plan, width=80), re.MULTILINE)


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


def test_plans_that_agree():
    assert diff_text(branches(), branches(), width=80) == (
        "changes from branches to branches\nthe plans agree in settings, memory, times, stages and devices\n"
    )


def test_settings_that_differ():
    other = three_stages() | {"method": "dsp", "schedule": [3, 2, 1], "accumulation": 4, "micro_batch": 32}
    assert (
        diff_text(three_stages(), other, width=80)
        == """\
changes from small to small

plan
                       other      this  change
──────────────────────────────────────────────
method                   dsp     petra
schedule      depths 3, 2, 1  lockstep
accumulation               4         2
micro-batch               32        64
"""
    )


def test_a_long_difference_is_cut_short(two_hundred):
    stages = [stage | {"depth": 1} for stage in two_hundred["stages"]]
    text = diff_text(two_hundred, two_hundred | {"stages": stages}, width=80)
    assert "… 159 more" in text


def test_one_method_alone_has_no_best():
    made = comparison()
    made["rows"] = made["rows"][:1]
    assert "\x1b[1;32m" not in compare_text(made, width=80, colour=True)
    assert "\x1b[1;32m" in compare_text(comparison(), width=80, colour=True)

"""Tables of plans on terminals: of any width, with colours or without, to the letter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from petra_graph_report.compare.comparison_tables import comparison_of
from petra_graph_report.compare.plan_table import PlanTable
from rich.cells import cell_len

SNAPSHOTS = Path(__file__).parent / "snapshots"
WIDTHS = [60, 80, 100, 120, 200]
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_terminal_and_colours_are_all_that_colour_adds(comparison, scaling, width):
    for document in (comparison, scaling):
        plain, coloured = (PlanTable(document).text(width, colour=colour) for colour in (False, True))
        assert max(map(cell_len, plain.splitlines())) <= width
        assert "\x1b" not in plain
        assert "\x1b[" in coloured
        assert [line.rstrip() for line in ESCAPE.sub("", coloured).splitlines()] == plain.splitlines()


@pytest.mark.parametrize("width", [60, 80])
def test_no_column_of_a_comparison_is_cut(comparison, width):
    for row in comparison["rows"]:
        row["method"] = "delayed-reconstructed"
    assert "…" not in PlanTable(comparison).text(width)


def test_what_is_written_is_what_was_looked_at(comparison, scaling):
    assert PlanTable(comparison).text(80) == (SNAPSHOTS / "comparison_80.txt").read_text(encoding="utf-8")
    assert PlanTable(scaling).text(120) == (SNAPSHOTS / "scaling_120.txt").read_text(encoding="utf-8")


def test_the_answers_of_a_comparison(comparison):
    """Methods whose numbers are written alike are no better than each other, and one that does not fit is no best."""
    said = PlanTable(comparison).text(120).splitlines()
    assert said[1:3] == [
        "fastest   3.00 x one device alone; all of them",
        "smallest  3 GiB on the fullest device; petra, lockstep",
    ]
    assert said[3:5] == [
        "choose    petra, 1f1b; 3.00 x; 8.50 updates stale; 9 GiB on the fullest device",
        'set       method.name = "petra"',
    ]
    assert any(line.startswith("backprop, 4 replicas ") for line in said)
    for row, fit in zip(comparison["rows"], (True, False, True, None), strict=True):
        row["fits"] = fit
    lines = PlanTable(comparison).text(120).splitlines()
    assert lines[1] == "fits      2 of 4 methods; the notes say why the others do not"
    assert "smallest  9 GiB on the fullest device; all of them" in lines
    assert [line.split()[4] for line in lines[11:15]] == ["yes", "no", "yes", "-"]


def test_one_method_alone_has_no_best(comparison):
    assert "\x1b[1;32m" in PlanTable(comparison).text(colour=True)
    alone = comparison | {"rows": comparison["rows"][:1], "recommended": None}
    assert "\x1b[1;32m" not in PlanTable(alone).text(colour=True)


def test_a_window_that_is_short_for_the_pipeline_is_explained(comparison):
    (note,) = [
        lines
        for title, lines in comparison_of(
            comparison | {"rows": [row | {"accumulation": 1} for row in comparison["rows"]]}
        ).notes
        if title == "the window"
    ]
    assert "averages 1 micro-batch in a pipeline of 4 devices" in note[0]
    assert "method.accumulation = 8" in note[0]
    assert "the window" not in dict(comparison_of(comparison).notes)

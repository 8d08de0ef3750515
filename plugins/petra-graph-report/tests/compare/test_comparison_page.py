"""The page of plans compared: answers, pictures, tables, and the reasons of refusals."""

from __future__ import annotations

import json
import re

import pytest
from petra_graph_report.compare.comparison_page import comparison_page, varied_charts
from petra_graph_report.plan.plan_page import page as page_of

from petra_graph.cli.main import main
from tests.support.html_page import Page, assert_fetches_nothing
from tests.support.runs import SPEC

MEMORY, BATCH = "partition.memory=100KiB,1MiB", "data.batch=64,32"


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


@pytest.fixture
def varied(spec, capsys):
    """What `petra-graph plan --vary` prints as JSON."""

    def printed(*texts, more=()):
        assert main(["plan", spec, *(word for text in texts for word in ("--vary", text)), "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)

    return printed


def test_the_picture_has_a_line_for_each_combination_of_the_other_keys(varied):
    document = varied(MEMORY, BATCH)
    (chart,) = varied_charts(document)
    assert chart.x_name == "partition.memory, GiB"
    assert {line.name: len(line.points) for line in chart.lines} == {"32": 2, "64": 1}
    assert chart.note == "samples a second; lines: data.batch; 1 refusal not drawn"
    rates = {(row["values"]["data.batch"]): row["samples_per_second"] for row in document["rows"]}
    assert {line.name: line.points[-1] for line in chart.lines} == {
        "32": (2**-10, rates[32]),
        "64": (2**-10, rates[64]),
    }
    assert 'aria-label="throughput: ' in comparison_page(document)


@pytest.mark.parametrize(
    ("text", "name", "places"),
    [
        (BATCH, "data.batch", [32, 64]),
    ],
)
def test_places_on_the_axis(varied, text, name, places):
    (chart,) = varied_charts(varied(text))
    assert (chart.x_name, [x for x, _ in chart.lines[0].points]) == (name, places)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("method.name=petra,dsp", ["name=petra", "name=dsp"]),
        ('method.keep="auto",{stem="input"}', ["keep=auto", 'keep={ stem = "input" }']),
    ],
)
def test_a_name_is_a_bar(varied, text, names):
    """They were the places 1 and 2 of an axis, joined by a line."""
    document = varied(text)
    (drawn,) = varied_charts(document)
    assert [bar.name for bar in drawn.rows] == names
    assert [bar.total for bar in drawn.rows] == [row["samples_per_second"] for row in document["rows"]]
    assert drawn.notes == "samples a second"
    assert f"throughput by {document['varied'][0]}" in Page(comparison_page(document)).texts


def test_when_every_combination_is_refused(varied):
    document = varied("partition.memory=1KiB,2KiB")
    assert varied_charts(document) == []
    page = comparison_page(document)
    assert "<svg" not in page
    assert "would hold" in page


def test_answers_and_pictures_of_methods(comparison):
    for row, fit in zip(comparison["rows"], (True, False, True, None), strict=True):
        row |= {"fits": fit, "unbeaten": row["unbeaten"] and fit}
    page = page_of(comparison)
    assert_fetches_nothing(page, Page(page))
    texts = Page(page).texts
    assert {"fits", "fastest", "smallest", "memory of the fullest device", "speed, times one device alone"} <= {*texts}
    assert page.count("<svg") == 3
    assert "petra, 1f1b: 1,565" in page, "a point of its own"
    assert "beaten in speed, staleness and memory" in page
    assert '<td class="bold red">no</td>' in page


def test_rows_that_another_one_beats_have_another_colour(comparison):
    page = comparison_page(comparison)
    assert "Grey: another row is." in page
    assert {row["unbeaten"] for row in comparison["rows"]} == {True, False}
    speeds = re.search(r'aria-label="speed, times .*?</svg>', page, re.DOTALL)[0]
    assert {"fill: var(--accent)", "fill: var(--edge)"} <= {*re.findall(r"fill: var\(--[a-z]+\)", speeds)}


def test_numbers_of_devices_are_a_table_and_a_line(scaling):
    """The page had no picture, but a column of bars made of letters."""
    page = comparison_page(scaling)
    assert page.count("<table") == 1
    assert "█" not in page
    assert 'aria-label="throughput: planned: ' in page
    assert "if no device waited" in page


def test_the_fastest_comes_first(varied):
    document = varied(BATCH)
    best = max(document["rows"], key=lambda row: row["samples_per_second"])
    texts = Page(comparison_page(document)).texts
    assert texts[texts.index("fastest") + 2 :][:1] == [best["name"]] or best["name"] in texts


def test_an_axis_names_the_planned_values(varied):
    """Its ticks were round numbers between them."""
    (chart,) = varied_charts(varied(BATCH))
    assert chart.x_at == [32, 64]

"""What if: the plans of all combinations of some values, a refusal among them as a row."""

from __future__ import annotations

import pytest
from petra_graph_studies.sweeping.combinations import Varied, axes_of_texts
from petra_graph_studies.sweeping.varied_plans import vary

from petra_graph.errors import SpecError
from petra_graph.planning.plan_spec import plan
from petra_graph.program.method import METHODS
from petra_graph.report.plan.plan_comparison import comparison_of, comparison_page, comparison_text, varied_charts
from tests.support.runs import SPEC

MEMORY, BATCH = "partition.memory=100KiB,1MiB", "data.batch=64,32"


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


def varied(spec, *texts, fixed=()):
    return vary(spec, fixed, axes_of_texts(texts, Varied))


def test_each_row_is_the_plan_of_its_values(spec):
    document = varied(spec, MEMORY, BATCH, fixed=["partition.stages=2"])
    assert document["varied"] == ["partition.memory", "data.batch"]
    assert [row["values"]["data.batch"] for row in document["rows"]] == [64, 32, 64, 32]
    row = document["rows"][2]
    alone = plan(spec, ["partition.stages=2", "partition.memory=1MiB", "data.batch=64"]).document(with_timeline=False)
    assert row["samples_per_second"] == alone["timing"]["samples_per_second"]
    assert row["memory_peak"] == max(device["bytes"]["total"] for device in alone["devices"])
    assert row["staleness"] == pytest.approx(max(stage["staleness"] for stage in alone["stages"]))
    assert (row["stages"], row["refused"], row["note"]) == (2, False, "")


def test_a_refusal_is_a_row_with_its_reason(spec):
    document = varied(spec, MEMORY, BATCH)
    first = document["rows"][0]
    assert first["refused"]
    assert first["samples_per_second"] is None
    assert first["note"].startswith('device "cpu" would hold ')
    assert "\n" not in first["note"], "the reason in short: the remedies are those of `plan`"
    assert [row["refused"] for row in document["rows"]] == [True, False, False, False]
    text = comparison_text(comparison_of(document), width=80)
    assert text.count(" refused ") == 1
    assert 'memory=100KiB, batch=64: device "cpu" would hold' in text


def test_when_every_combination_is_refused(spec):
    """For want of memory that is an answer; a wrong key is a mistake."""
    document = varied(spec, "partition.memory=1KiB,2KiB")
    assert all(row["refused"] for row in document["rows"])
    assert varied_charts(document) == []
    assert "svg" not in comparison_page(comparison_of(document)).partition("<body>")[2]
    with pytest.raises(SpecError, match=r'--vary partition\.memry=1KiB: unknown key "memry"'):
        varied(spec, "partition.memry=1KiB,2KiB")
    with pytest.raises(SpecError, match=r"--vary data\.batch=1,1: 1 stands there twice"):
        varied(spec, "data.batch=1,1")


def test_the_picture_has_a_line_for_each_combination_of_the_other_keys(spec):
    document = varied(spec, MEMORY, BATCH)
    (chart,) = varied_charts(document)
    assert chart.x_name == "partition.memory, GiB"
    assert {line.name: len(line.points) for line in chart.lines} == {"32": 2, "64": 1}
    assert chart.note == "samples a second; lines: data.batch; 1 refusal not drawn"
    rates = {(row["values"]["data.batch"]): row["samples_per_second"] for row in document["rows"]}
    assert {line.name: line.points[-1] for line in chart.lines} == {
        "32": (2**-10, rates[32]),
        "64": (2**-10, rates[64]),
    }
    assert 'aria-label="throughput: ' in comparison_page(comparison_of(document))


def test_methods_are_points_among_limits(spec):
    document = vary(
        spec,
        ["method.name=gpipe", "method.schedule=fill-drain", "method.keep=auto"],
        axes_of_texts([MEMORY], Varied),
        methods=True,
    )
    (chart,) = varied_charts(document)
    points = {line.name: line.points for line in chart.lines}
    assert list(points) == ["this spec", *METHODS]
    rows = {
        row["method"]: row for row in document["methods"]["rows"] if row["schedule"] == "lockstep" and not row["keep"]
    }
    assert points["petra"] == [(rows["petra"]["memory_peak"] / 2**30, rows["petra"]["samples_per_second"])]
    text = comparison_text(comparison_of(document), width=80)
    assert "1f1b-flush" in text
    assert "pipedream" in comparison_page(comparison_of(document))


@pytest.mark.parametrize(
    ("text", "name", "places"),
    [
        (BATCH, "data.batch", [32, 64]),
        ("partition.strategy=balanced,memory", "partition.strategy: 1 balanced, 2 memory", [1, 2]),
        ("run.self_check=true,false", "run.self_check: 1 true, 2 false", [1, 2]),
        ('method.keep="auto",{stem="input"}', 'method.keep: 1 auto, 2 { stem = "input" }', [1, 2]),
    ],
)
def test_places_on_the_axis(spec, text, name, places):
    (chart,) = varied_charts(varied(spec, text))
    assert (chart.x_name, [x for x, _ in chart.lines[0].points]) == (name, places)

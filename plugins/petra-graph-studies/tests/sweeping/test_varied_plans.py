"""What if: the plans of all combinations of some values, a refusal among them as a row."""

from __future__ import annotations

import pytest
from petra_graph_studies.sweeping.combinations import Varied, axes_of_texts
from petra_graph_studies.sweeping.varied_plans import vary

from petra_graph.errors import SpecError
from petra_graph.planning.plan_spec import plan
from petra_graph.report.comparison import text_of
from tests.support.runs import SPEC

MEMORY, BATCH = "partition.memory=100KiB,1MiB", "data.batch=64,32"


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


def varied(spec, *texts, fixed=()):
    return vary(spec, fixed, axes_of_texts(texts, Varied))


def test_each_row_is_the_plan_of_its_values(spec):
    document = varied(spec, MEMORY, BATCH, fixed=["partition.stages=2"])
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
    text = text_of(document, width=80)
    assert 'memory=100KiB, batch=64: device "cpu" would hold' in text


def test_when_every_combination_is_refused(spec):
    """For want of memory that is an answer; a wrong key is a mistake."""
    document = varied(spec, "partition.memory=1KiB,2KiB")
    assert all(row["refused"] for row in document["rows"])
    with pytest.raises(SpecError, match=r'--vary partition\.memry=1KiB: unknown key "memry"'):
        varied(spec, "partition.memry=1KiB,2KiB")
    with pytest.raises(SpecError, match=r"--vary data\.batch=1,1: 1 stands there twice"):
        varied(spec, "data.batch=1,1")

"""Figures for notebooks: one SVG, whose style reaches nothing else on the page that shows it."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from petra_graph.report.notebook_views import plan_figure, run_figure
from tests.support.plan_documents import hostile, three_stages


@pytest.mark.parametrize("plan", [three_stages, hostile])
def test_a_plan_is_one_drawing_with_a_row_a_stage_and_panel(plan):
    document = plan()
    root = ET.fromstring(plan_figure(document).svg)
    assert root.tag.endswith("svg")
    texts = ["".join(text.itertext()) for text in root.iter() if text.tag.endswith("text")]
    assert {"memory of a stage", "parameters", "time of a micro-batch", "forward", "backward"} <= set(texts)
    assert sum(text.startswith("1  ") for text in texts) == 2


def test_rules_are_for_the_figure_alone():
    style = re.search(r"<style>(.*?)</style>", plan_figure(three_stages()).svg, re.DOTALL)[1]
    selectors = [one.strip() for rule in re.findall(r"([^{}]+)\{[^{}]*\}", style) for one in rule.split(",")]
    assert len(selectors) > 40
    assert {selector for selector in selectors if not selector.startswith("svg.petra-graph")} == set()


def test_a_run_without_an_epoch_says_so(saved_run):
    (saved_run / "metrics.jsonl").write_text("")
    assert ">No epoch has ended yet.</text>" in run_figure(saved_run).svg

"""Pages: one file that fetches nothing, whatever names a plan or a run has, with what each section promises."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest

from petra_graph.errors import SpecError
from petra_graph.planning.compare_plans import compare_methods
from petra_graph.planning.plan_spec import Planner
from petra_graph.record.recorded_run import read_run
from petra_graph.record.run_directory import lock
from petra_graph.report.pages.plan_page import page as plan_page
from petra_graph.report.pages.run_page import run_page, thin_out
from petra_graph.report.pages.runs_page import runs_page
from tests.support.html_page import Page, assert_fetches_nothing
from tests.support.plan_documents import branches, hostile, long_names, revnet50, three_stages
from tests.support.runs import SPEC


def sections(page):
    return re.findall(r'<h2 id="([\w ]+)"', page)


def pictures(page):
    return re.findall(r"<figcaption>([^<]+)<", page)


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("plan", [three_stages, branches, revnet50, hostile, long_names])
def test_the_page_of_a_plan(plan):
    text = plan_page(plan())
    page = Page(text)
    assert_fetches_nothing(text, page)
    assert sections(text) == ["memory", "timeline", "tables", "graph", "assumptions"]
    assert "script" not in {name for name, _ in page.elements}
    assert len(page.all("svg")) == len(pictures(text)) >= 2
    shown = "".join(page.texts)
    for node in plan()["nodes"]:
        assert node["name"][:50].replace("\n", " ") in shown


def test_memory_beyond_a_limit_is_said_in_its_bar():
    plan = revnet50()
    limit = plan["stages"][0]["bytes"]["total"] - 1
    plan["devices"] = [device | {"memory_bytes": limit} for device in plan["devices"]]
    assert re.search(r'fill: #b00020">\d+ MiB of \d+ MiB<|#b00020[^>]*>[^<]* of [^<]*<', plan_page(plan))


def test_the_page_of_a_comparison(write):
    document = compare_methods(Planner(write("small.toml", SPEC), ["partition.devices=2"]))
    text = plan_page(document)
    assert_fetches_nothing(text, Page(text))
    assert sections(text) == ["picture", "table", "notes", "assumptions"]
    assert text.count("<tr>") == 1 + len(document["rows"])


@pytest.fixture(scope="module")
def pages(saved_runs):
    runs = {name: read_run(directory) for name, directory in saved_runs.items()}
    return {
        "one run": run_page(runs["first"]),
        "one run with a probe": run_page(runs["probed"]),
        "three runs": runs_page(list(runs.values())),
    }


@pytest.mark.parametrize("name", ["one run", "one run with a probe", "three runs"])
def test_a_page_of_runs_fetches_nothing(pages, name):
    assert_fetches_nothing(pages[name], Page(pages[name]))
    assert re.findall(r'<a href="#([\w ]+)">', pages[name]) == sections(pages[name])


def test_curves(pages):
    curves = ["loss", "top1", "top5", "micro-batch loss", "throughput"]
    assert [title for title in pictures(pages["one run"]) if title in curves] == curves
    probe = ["cosine to other gradients", "norm ratio to other gradients", "relative error of reconstructed inputs"]
    assert pictures(pages["one run with a probe"])[-3:] == probe
    assert pictures(pages["three runs"]) == [
        *("test loss", "train loss", "test top1", "train top1", "test top5", "train top5", "throughput"),
    ]


def test_runs_of_one_epoch_are_a_table_without_pictures_of_single_dots(saved_runs):
    runs = [read_run(directory) for directory in saved_runs.values()]
    for run in runs:
        run.metrics = {name: points[:1] for name, points in run.metrics.items()}
    page = runs_page(runs)
    assert (pictures(page), sections(page)) == ([], ["groups", "runs"])


def test_a_group_has_a_band_and_a_single_run_none(pages):
    drawn = re.search(r"test loss<.*?</figure>", pages["three runs"], re.DOTALL)[0]
    assert drawn.count("opacity: 0.18") == 1


def test_all_that_the_run_left(pages, saved_runs):
    shown = "".join(Page(pages["one run"]).texts)
    summary, environment = (
        json.loads((saved_runs["first"] / f"{name}.json").read_text()) for name in ("summary", "env")
    )
    for text in ("done, 2 of 2 epochs", f"{100 * summary['test']['top1']:.2f} %", environment["packages"]["torch"]):
        assert text in shown
    assert (saved_runs["first"] / "resolved.toml").read_text() in shown
    assert {"planned", "measured"} <= {word for text in Page(pages["one run"]).texts for word in text.split()}
    assert "simulated timeline" in shown


def test_a_run_that_is_under_way(saved_run):
    (saved_run / "summary.json").unlink()
    held = lock(saved_run)
    page = run_page(read_run(saved_run))
    os.close(held)
    assert "The run is under way: 2 of 2 epochs recorded." in page
    assert "latest test/loss" in page
    assert "final test/loss" not in page


def test_a_run_that_has_recorded_nothing_yet(saved_run):
    for name in ("summary.json", "plan.json", "timeline.json"):
        (saved_run / name).unlink(missing_ok=True)
    (saved_run / "metrics.jsonl").write_text("")
    page = run_page(read_run(saved_run))
    assert "ended without a summary" in page
    assert sections(page) == ["stages", "run"]
    Page(runs_page([read_run(saved_run)] * 2))


def test_a_run_that_failed(saved_run):
    change(saved_run / "summary.json", status="failed", error=["the loss is <nan>"], measured=None)
    (saved_run / "failure.txt").write_text("Traceback: in stage 2 & 3")
    page = run_page(read_run(saved_run))
    assert "the loss is &lt;nan&gt;" in page
    assert "Traceback: in stage 2 &amp; 3" in page


def test_a_run_that_was_interrupted_and_resumed(saved_run):
    change(saved_run / "summary.json", status="interrupted", resumed_from=[1100, 1200])
    (saved_run / "checkpoints" / "000000001300").mkdir(parents=True)
    page = run_page(read_run(saved_run))
    assert f"petra-graph run --resume {saved_run}" in page
    assert "resumed before micro-batch: 1,100, 1,200" in page


def test_several_runs_say_what_the_test_samples_say_of_the_best(saved_runs):
    runs = [read_run(directory) for directory in saved_runs.values()]
    assert "its test" not in Page(runs_page(runs)).texts, "they are judged by it"
    for run in runs:
        run.resolved["data"]["validation"] = 0.1
        run.metrics = {**run.metrics, "validation/top1": run.metrics["test/top1"]}
        run.summary["test_weights"] = {"weights": "best", "epoch": 1}
    assert "with the best weights of each run" in runs_page(runs)


def test_many_points_are_thinned_in_a_band():
    points = [(float(x), float(x % 2)) for x in range(10)]
    assert thin_out(points, 10) == (points, ())
    means, band = thin_out(points, 5)
    assert means == [(float(x), 0.5) for x in (1, 3, 5, 7, 9)]
    assert band[0] == (1.0, 0.0, 1.0)


def test_without_matplotlib_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SpecError, match=r"a page needs matplotlib\n.*petra-graph\[report\]"):
        plan_page(three_stages())

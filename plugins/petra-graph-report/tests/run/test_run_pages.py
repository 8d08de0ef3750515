"""The pages of runs: whole, fetching nothing, with all that a run left, in whatever state the run is."""

from __future__ import annotations

import json
import os
import re
from importlib.resources import files

import pytest
from petra_graph_report.run.run_page import run_page
from petra_graph_report.run.runs_page import runs_page

from petra_graph.errors import SpecError
from petra_graph.record.recorded_run import read_run
from petra_graph.record.run_directory import lock
from tests.support.contrast import GRAPHICS, TEXT, contrast, schemes
from tests.support.html_page import Page, assert_fetches_nothing


@pytest.fixture(scope="module")
def pages(saved_runs):
    runs = {name: read_run(directory) for name, directory in saved_runs.items()}
    return {
        "one run": run_page(runs["first"]),
        "one run with a probe": run_page(runs["probed"]),
        "three runs": runs_page(list(runs.values())),
    }


def titles(page):
    return re.findall(r"<figcaption>(.*?)<small>", page)


@pytest.mark.parametrize("name", ["one run", "one run with a probe", "three runs"])
def test_a_page_needs_no_other_file_and_no_script(pages, name):
    page = Page(pages[name])
    assert_fetches_nothing(pages[name], page)
    assert page.all("script") == []
    (policy,) = (a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert {attributes["href"] for attributes in page.all("a")} == {f"#{name}" for name in ids}
    (style,) = (text for text in page.texts if ":root" in text)
    assert set(re.findall(r"var\((--[\w-]+)\)", pages[name])) <= set(re.findall(r"(--[\w-]+):", style))


def test_curves(pages):
    assert titles(pages["one run"]) == [
        *("loss", "top1", "top5", "micro-batch loss", "learning rate", "throughput"),
        *("staleness by stage", "throughput by stage"),
    ]
    assert titles(pages["one run with a probe"])[8:] == [
        *("cosine to other gradients", "cosine to other gradients, by stage"),
        *("norm ratio to other gradients", "norm ratio to other gradients, by stage"),
        *("relative error of reconstructed inputs", "relative error of reconstructed inputs, by stage"),
    ]
    assert titles(pages["three runs"]) == [
        *("test loss", "train loss", "test top1", "train top1", "test top5", "train top5"),
        *("learning rate", "throughput"),
    ]


def test_a_group_has_a_band_and_a_single_run_none(pages):
    (throughput,) = re.findall(r'aria-label="throughput: (.*?)".*?</svg>', pages["three runs"])
    assert [label.split()[0] for label in throughput.split(", ") if label[0] in "AB"] == ["A", "B"]
    drawing = re.search(r'<svg [^>]*aria-label="test loss.*?</svg>', pages["three runs"], re.DOTALL)[0]
    assert re.findall(r'class="band (s\d)"', drawing) == ["s0"]


def test_the_mean_over_stages_has_a_band(pages):
    page = pages["one run with a probe"]
    drawing = re.search(r'<svg [^>]*aria-label="cosine to other gradients:.*?</svg>', page, re.DOTALL)[0]
    assert re.findall(r'class="band (s\d)"', drawing) == ["s0", "s1"]


def test_all_that_the_run_left(pages, saved_runs):
    text = "".join(Page(pages["one run"]).texts)
    summary = json.loads((saved_runs["first"] / "summary.json").read_text())
    environment = json.loads((saved_runs["first"] / "env.json").read_text())
    for shown in ("done", "2 of 2 epochs", f"{100 * summary['test']['top1']:.2f} %", environment["packages"]["torch"]):
        assert shown in text
    assert "planned and measured" in text.lower()
    assert "growth since before" in text
    assert "random, from seed 1" in text
    assert "never" in text
    assert (saved_runs["first"] / "resolved.toml").read_text() in text
    plan = json.loads((saved_runs["first"] / "plan.json").read_text())
    assert all(warning in text for warning in plan["warnings"])
    assert 'aria-label="timeline from' in pages["one run"]


def test_a_run_that_is_under_way(saved_run):
    (saved_run / "summary.json").unlink()
    held = lock(saved_run)
    page = run_page(read_run(saved_run))
    os.close(held)
    assert "The run is under way: 2 of 2 epochs recorded." in page
    assert "it is written when a run ends" in page


def test_a_run_that_has_recorded_nothing_yet(saved_run):
    (saved_run / "summary.json").unlink()
    (saved_run / "metrics.jsonl").write_text("")
    page = run_page(read_run(saved_run))
    assert "No epoch has ended yet." in page
    assert "ended without a summary" in page
    Page(runs_page([read_run(saved_run)]))


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_run_that_failed(saved_run):
    change(saved_run / "summary.json", status="failed", error=["the loss is <nan>"], measured=None)
    (saved_run / "failure.txt").write_text("Traceback: in stage 2 & 3")
    page = run_page(read_run(saved_run))
    assert "<p>the loss is &lt;nan&gt;</p>" in page
    assert "Traceback: in stage 2 &amp; 3" in page


def test_a_run_that_was_interrupted_and_resumed(saved_run):
    change(saved_run / "summary.json", status="interrupted", resumed_from=[1100, 1200])
    (saved_run / "checkpoints" / "000000001300").mkdir(parents=True)
    page = run_page(read_run(saved_run))
    assert "The run was interrupted: 2 of 2 epochs recorded." in page
    assert f"petra-graph run --resume {saved_run}" in page
    assert "2 times: before micro-batch 1,100; before micro-batch 1,200" in page
    assert "before micro-batch 1,300" in page


def test_a_run_without_a_plan(saved_run):
    (saved_run / "plan.json").unlink()
    (saved_run / "timeline.json").unlink()
    change(saved_run / "summary.json", predicted={"not planned": ["block 'x' cannot be timed"]})
    page = run_page(read_run(saved_run))
    assert "The run was not planned: block &#39;x&#39; cannot be timed" in page
    assert "The run kept no timeline" in page


@pytest.mark.parametrize(
    ("name", "text"), [("plan.json", "{}"), ("timeline.json", '[{"stage": 9}]'), ("env.json", "x")]
)
def test_a_damaged_file_is_named(saved_run, name, text):
    (saved_run / name).write_text(text)
    with pytest.raises(SpecError, match=re.escape(name)):
        run_page(read_run(saved_run))


@pytest.mark.parametrize("name", ["plan.json", "summary.json"])
def test_a_folder_in_the_place_of_a_file_is_named(saved_run, name):
    (saved_run / name).unlink()
    (saved_run / name).mkdir()
    with pytest.raises(SpecError, match=rf"{name} is damaged: Is a directory"):
        run_page(read_run(saved_run))


def test_names_are_text(saved_run):
    run = read_run(saved_run)
    run.resolved = {**run.resolved, "name": "<script>x</script>"}
    for page in (run_page(run), runs_page([run, run])):
        assert Page(page).all("script") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_the_contrast_that_wcag_asks_for(scheme):
    style = files("petra_graph.report").joinpath("drawing/drawing.css").read_text(encoding="utf-8")
    colours = schemes(style)[scheme]
    series = [colour for name, colour in colours.items() if name.startswith("series-")]
    assert len(set(series)) == 6
    assert min(contrast(colour, colours["ground"]) for colour in series) >= TEXT, "they write labels, too"
    assert contrast(colours["accent"], colours["raised"]) >= GRAPHICS
    assert contrast(colours["bad"], colours["raised"]) >= TEXT

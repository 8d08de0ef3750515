"""The pages of runs: whole, fetching nothing, with all that a run left, in whatever state the run is."""

from __future__ import annotations

import json
import os
import re

import pytest
from petra_graph_report.run.recorded_run import read_run
from petra_graph_report.run.run_curves import mean_over_runs, thin_out
from petra_graph_report.run.run_page import run_page
from petra_graph_report.run.runs_page import runs_page

from petra_graph.errors import SpecError
from petra_graph.record.run_directory import lock
from tests.support.html_page import Page, assert_fetches_nothing


@pytest.fixture(scope="module")
def pages(saved_runs):
    runs = {name: read_run(directory) for name, directory in saved_runs.items()}
    return {
        "one run": run_page(runs["first"]),
        "one run with a probe": run_page(runs["probed"]),
        "three runs": runs_page(list(runs.values())),
    }


def test_the_page_of_several_runs_names_the_data_of_its_numbers(pages):
    assert "The data: digits." in " ".join(Page(pages["three runs"]).texts)


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
    assert len(set(ids)) == len(ids)
    assert {attributes["href"] for attributes in page.all("a")} <= {f"#{name}" for name in ids}
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
        *("test/top1 by log_every", "test/top1 by schedule", "test/top1 by per_epoch"),
        *("test loss", "train loss", "test top1", "train top1", "test top5", "train top5"),
        *("learning rate", "throughput"),
    ]


def drawing(page, label):
    return re.search(rf'<svg role="img" aria-label="{label}:.*?</svg>', page, re.DOTALL)[0]


def test_a_group_has_a_band_and_a_single_run_none(pages):
    assert re.findall(r"log_every=[14]: [\d,]+", re.search(r'aria-label="throughput: ([^"]*)"', pages["three runs"])[1])
    assert drawing(pages["three runs"], "test loss").count("opacity: 0.2") == 1


def test_the_mean_over_stages_has_a_band(pages):
    page = pages["one run with a probe"]
    assert drawing(page, "cosine to other gradients").count("opacity: 0.2") == 2


def test_curves_go_as_far_as_all_runs_of_a_group_came(saved_runs):
    first, second = (read_run(saved_runs[name]) for name in ("first", "second"))
    second.metrics = {**second.metrics, "test/loss": second.metrics["test/loss"][:1]}
    values = mean_over_runs([first, second], "test/loss")
    assert [epoch for epoch, _ in values] == [1]
    assert len(values[0][1]) == 2


def test_many_points_are_thinned_in_a_band():
    points = [(float(x), float(x % 2)) for x in range(10)]
    assert thin_out(points, 10) == (points, ())
    means, band = thin_out(points, 5)
    assert means == [(float(x), 0.5) for x in (1, 3, 5, 7, 9)]
    assert band[0] == (1.0, 0.0, 1.0)


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
    assert "The run is under way: 2 of 2 epochs recorded. What a run measures of itself is written at its end." in page
    assert "latest test/loss" in page
    assert "final test/loss" not in page


def test_a_page_has_no_empty_sections(saved_run):
    """A run under way that was not planned had three headings with a sentence each that there was nothing."""
    for name in ("summary.json", "plan.json", "timeline.json"):
        (saved_run / name).unlink(missing_ok=True)
    held = lock(saved_run)
    page = run_page(read_run(saved_run))
    os.close(held)
    assert re.findall(r"<h2[^>]*>(\w+)", page) == re.findall(r'<a href="#\w+">(\w+)', page) == ["Curves", "Run"]


def test_a_page_says_first_what_it_is(pages):
    texts = Page(pages["one run"]).texts
    assert "small: run" in texts
    assert any(text.startswith("A run on the data digits: petra, schedule ") for text in texts)


def test_a_best_value_that_is_the_latest_stands_once(pages):
    """The figures of the latest evaluation repeated the best one where both were of one epoch."""
    best = re.search(r"<dt>best (\S+)</dt><dd>[^<]*<small>after epoch 2", pages["one run"])
    assert f"final {best[1]}" not in pages["one run"]


def test_several_runs_say_what_the_test_samples_say_of_the_best(saved_runs):
    runs = [read_run(directory) for directory in saved_runs.values()]
    assert "its test" not in Page(runs_page(runs)).texts, "they are judged by it"
    for run in runs:
        run.resolved["data"]["validation"] = 0.1
        run.metrics = {**run.metrics, "validation/top1": run.metrics["test/top1"]}
        run.summary["test_weights"] = {"weights": "best", "epoch": 1}
    page = runs_page(runs)
    assert "its test" in Page(page).texts
    assert "with the best weights of each run" in page


def test_commands_are_code(saved_runs):
    page = runs_page([read_run(saved_runs[name]) for name in ("first", "probed")])
    assert re.search(r"<code>--seeds \d</code>", page), "and not its escaped tags"


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
    (saved_run / "plan.json").unlink(missing_ok=True)
    (saved_run / "timeline.json").unlink(missing_ok=True)
    change(saved_run / "summary.json", predicted={"not planned": ["block 'x' cannot be timed"]})
    page = run_page(read_run(saved_run))
    assert "The run was not planned: block &#39;x&#39; cannot be timed. <code>petra-graph plan " in page
    assert "timeline" not in re.findall(r'<h2 id="(\w+)"', page)
    assert "Measured are the host&#39;s seconds" in page.replace("host's", "host&#39;s")
    assert titles(page)[-1:] == ["throughput by stage"], "as measured; the staleness would be the plan's"
    texts = Page(page).texts
    assert {"rev.0", "busy"} <= {*texts}
    assert any(text.startswith("forward\n") for text in texts)
    change(saved_run / "summary.json", predicted=None, measured=None)
    page = run_page(read_run(saved_run))
    assert "The run was not planned. <code>petra-graph plan " in page
    assert "throughput by stage" not in page


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

"""`petra-graph report` and `petra-graph plan --format`: pages, traces and pictures, or why nothing is written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from tests.support.runs import SPEC


@pytest.fixture
def probed(saved_runs, tmp_path):
    """A run of two epochs with a probe."""
    return Path(shutil.copytree(saved_runs["probed"], tmp_path / "probed"))


def test_pictures_go_into_the_run_directory(probed, capsys):
    assert main(["report", str(probed), "--figure", "fidelity"]) == 0
    pictures = [probed / "fidelity-training.png", probed / "fidelity-stages.png"]
    assert capsys.readouterr().out.splitlines() == [str(path) for path in pictures]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)


def test_or_elsewhere_with_the_numbers(probed, here, capsys):
    assert main(["report", str(probed), "--figure", "fidelity", "--output", "figures/v1.5", "--json"]) == 0
    assert {path.name for path in (here / "figures").iterdir()} == {"v1.5-training.png", "v1.5-stages.png"}
    assert not (probed / "fidelity-training.png").exists()
    facts = json.loads(capsys.readouterr().out)
    assert (facts["method"], facts["settings"]) == ("petra", "lockstep, accumulation 3")
    assert facts["figures"] == {"training": "figures/v1.5-training.png", "stages": "figures/v1.5-stages.png"}
    assert (facts["epochs"], facts["stages"]) == (2, [1, 2, 3, 4])
    assert len(facts["means by epoch"]["cosine_to_end_to_end"]["1"]) == 2
    assert set(facts["means by epoch"]["reconstruction_error"]) == {"2", "3"}


def test_a_run_without_a_probe(saved_run, capsys):
    assert main(["report", str(saved_run), "--figure", "fidelity"]) == 2
    assert capsys.readouterr() == (
        "",
        (
            f"{saved_run} holds no measurement of a probe\n"
            "    help: train with a probe: petra-graph run SPEC --set probe.per_epoch=15\n"
        ),
    )


def test_a_page_goes_into_the_run_directory(saved_run, capsys):
    assert main(["report", str(saved_run)]) == 0
    assert capsys.readouterr().out == f"{saved_run}/report.html\n"
    assert (saved_run / "report.html").read_text().startswith("<!doctype html>")


def test_the_latest_run(saved_run, here, capsys):
    (here / "runs").mkdir()
    saved_run.rename(here / "runs" / saved_run.name)
    assert main(["report", "latest", "--output", "pages/one.html", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["output"] == "pages/one.html"
    assert (here / "pages" / "one.html").is_file()
    (run,) = facts["runs"]
    assert (run["status"], run["epochs"], run["seed"]) == ("done", 2, 1)


def test_several_runs(saved_runs, here, capsys):
    assert main(["report", *map(str, saved_runs.values()), str(saved_runs["first"]), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["output"] == "report.html"
    assert ": 3 runs over " in (here / "report.html").read_text()
    assert sorted(group["best"]["n"] for group in facts["groups"]) == [1, 2]
    assert sorted(facts["differing"]["method.schedule"].items()) == [
        ("schedule=1f1b, log_every=4", '"1f1b"'),
        ("schedule=lockstep, log_every=1", '"lockstep"'),
    ]


def test_all_that_is_wrong_with_runs_is_said_at_once(saved_run, here, capsys):
    (saved_run / "summary.json").write_text("{")
    assert main(["report", "none", str(saved_run)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "there is no run directory none\n    help: give the directory of a run, or `latest`\n" in err
    assert f"{saved_run}/summary.json is damaged: " in err
    assert err.endswith("2 problems\n")


def test_a_figure_is_of_one_run(saved_runs, capsys):
    assert main(["report", *map(str, saved_runs.values()), "--figure", "fidelity"]) == 2
    assert "--figure fidelity is of one RUN (got 3)" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.parametrize("words", [["report", "RUN", "--figure", "fidelity"], ["runs", "RUN"]])
def test_a_report_needs_no_torch(saved_runs, here, words):
    code = "import sys; from petra_graph.cli.main import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    output = ["--output", "written"] if words[0] == "report" else []
    command = [sys.executable, "-c", code, *(str(saved_runs["probed"]) if word == "RUN" else word for word in words)]
    done = subprocess.run([*command, *output], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert done.stderr == ""


@pytest.mark.parametrize("form", ["html", "trace"])
def test_a_plan_and_the_same_plan_saved(write, here, capsys, form):
    spec = write("small.toml", SPEC)
    assert main(["plan", spec, "--format", form, "--output", "one"]) == 0
    assert main(["plan", spec, "--json", "--output", "saved.json"]) == 0
    assert main(["plan", "saved.json", "--format", form, "--output", "other"]) == 0
    assert (here / "one").read_text() == (here / "other").read_text()
    assert (here / "one").read_text().startswith({"html": "<!doctype html>", "trace": "{"}[form])


@pytest.mark.parametrize("table", [("--compare",), ("--scale", "1,2"), ("--vary", "data.batch=8,16")])
def test_tables_of_plans(write, here, capsys, table):
    spec = write("small.toml", SPEC)
    assert main(["plan", spec, *table, "--format", "html", "--output", "page.html"]) == 0
    page = (here / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<table>" in page
    assert "<summary>" in page, "the assumptions"
    capsys.readouterr()
    assert main(["plan", spec, *table, "--format", "trace"]) == 2
    assert "a trace is of one plan, not of a table of plans" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--format", "html", "--json"], "--json is --format json: leave out --format html, or --json."),
        (["--expand", "--format", "html"], "--expand writes TOML (got --format html)."),
        (["--verbose", "--format", "html"], "--verbose is of the text (got --format html)."),
        (["--format", "dot"], "allowed: text, json, html, trace"),
    ],
)
def test_options_that_do_not_go_together(write, capsys, options, reason):
    assert main(["plan", write("small.toml", SPEC), *options]) == 2
    assert reason in capsys.readouterr().err


def test_the_api_has_pages(write, here):
    import petra_graph as pg

    spec = write("small.toml", SPEC)
    assert pg.plan(spec).html().startswith("<!doctype html>")
    assert "<svg" in pg.vary(spec, {"data.batch": [64, 128]}).html()

"""Two sides that print the same but for times are equal, and whatever differs by a word is shown."""

from __future__ import annotations

import importlib
import json

import pytest
from click.testing import CliRunner

from tests.support import ROOT


@pytest.fixture
def tool(monkeypatch):
    """The tool, which imports its neighbours by name."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("same_outputs")


CASE = {"name": "one", "lines": [{"files": {}, "path": [], "arguments": ["run", "a.toml"]}]}


@pytest.fixture
def side():
    """What a side printed and wrote."""

    def of(run="20261123T051807Z-small-033e1b", speed="1,234.5", folder="/tmp/case-1/here", said="done", code=0):
        out = f"{said}\n{speed} samples/s\nresults: {folder}/runs/{run}\n"
        files = {f"runs/{run}/metrics.jsonl": '{{"time": {}, "value": 2.5}}\n'.format(speed.replace(",", ""))}
        done = {"folder": folder, "lines": [{"code": code, "out.txt": out, "err.txt": ""}], "files": files}
        return {"description": "x", "places": {}, "cases": {"one": done}}

    return of


def test_times_names_of_runs_and_folders_may_differ(tool, side):
    other = side(run="20261124T000000Z-small-95c161", speed="9", folder="/tmp/case-2/here")
    assert list(tool.differences(CASE, side(), other)) == []


def test_a_word_a_code_and_a_file_may_not(tool, side):
    assert list(tool.differences(CASE, side(), side(said="ready"))) == [
        "-- 1. petra-graph run a.toml",
        "@@ -1,3 +1,3 @@",
        " exit code 0",
        "-done",
        "+ready",
        " # samples/s",
    ]
    assert "-exit code 0" in list(tool.differences(CASE, side(), side(code=1)))
    missing = side()
    missing["cases"]["one"]["files"] = {}
    assert next(iter(tool.differences(CASE, side(), missing))) == "-- file runs/<run 1>/metrics.jsonl"


def test_frames_of_petra_graph_are_left_out_and_those_of_others_are_not(tool):
    text = 'Traceback:\n  File "<package>/petra_graph/a.py", line 3, in f\n    g()\n    ^^^\n  File "mine.py", line 4, in g\nE\n'
    assert tool.common("file failure.txt", text, {}) == (
        'Traceback:\n  (frames of petra_graph)\n  File "mine.py", line 4, in g\nE\n'
    )


def test_every_verb_has_lines_and_every_case_a_name_of_its_own(tool):
    from petra_graph.cli.main import VERBS

    listed = tool.tomllib.loads(tool.CASES.read_text())
    cases = list(tool.written(listed))
    assert len({case["name"] for case in cases}) == len(cases)
    assert {line["arguments"][0] for case in cases for line in case["lines"] if line["arguments"]} >= set(VERBS)
    assert all((ROOT / name).exists() for name in listed["tests"])


@pytest.mark.thorough
@pytest.mark.processes
def test_the_lines_of_a_test_come_with_its_files(tool, tmp_path):
    (case,) = tool.called_by_tests(
        ["tests/promises/test_mistakes.py::test_the_whole_output[an empty list of depths]"], tmp_path
    )
    (line,) = case["lines"]
    assert line["arguments"] == ["validate", "a.toml"]
    assert "schedule = []" in line["files"]["a.toml"]


@pytest.mark.thorough
@pytest.mark.processes
@pytest.mark.slow
def test_a_word_that_changed_is_found(tool, tmp_path, monkeypatch):
    def another_word(asked, folder, root):
        side = installed(asked, folder, root)
        if asked == ".":
            module = folder / "petra_graph/cli/main.py"
            module.write_text(module.read_text().replace("No such verb", "There is no verb"))
        return side

    installed = tool.installed
    monkeypatch.setattr(tool, "installed", another_word)
    monkeypatch.setattr(tool, "check_installation", lambda side: None)  # it has its test beside same_bits.py
    lines = [{"files": {}, "path": [], "arguments": words} for words in (["xyz"], ["new", "spec", "a.toml"])]
    monkeypatch.setattr(tool, "gathered", lambda place: [{"name": "words", "lines": lines}])
    recorded = str(tmp_path / "recorded")
    done = CliRunner().invoke(tool.main, ["record", "WORKTREE", recorded], catch_exceptions=False)
    assert "2 command lines in 1 cases: xyz 1, new 1" in done.stdout, done.output
    done = CliRunner().invoke(tool.main, ["compare", recorded, "."], catch_exceptions=False)
    assert done.exit_code == 1
    assert "-! Error: No such verb" in done.stdout
    assert done.stdout.count("\n-- ") == 1, "the spec is the same"
    assert "0 of 1 cases equal" in done.stdout
    found = json.loads((tmp_path / "recorded/outputs.json").read_text())["outputs"]["cases"]["words"]
    assert "[data]" in found["files"]["a.toml"]

"""Formats of plans of other distributions: found, refused by name, and said to be missing."""

from __future__ import annotations

import pytest

from petra_graph.cli.main import main
from petra_graph.registry import discovery
from tests.support.runs import SPEC

FORMAT = """\
def shout(document):
    return document["name"].upper()
"""


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


def test_a_format_of_another_distribution_is_written(install, spec, capsys):
    install("my-format", "[petra_graph.plan_formats]\nshout = my_format:shout\n", my_format=FORMAT)
    assert main(["plan", spec, "--format", "shout"]) == 0
    assert capsys.readouterr().out == "SMALL\n"
    assert main(["plan", spec, "--format", "shoot"]) == 2
    assert "there is no format 'shoot' of plans\n    help: allowed: text, json, " in capsys.readouterr().err


@pytest.mark.parametrize("target", ["nowhere:shout", "my_format:whisper"])
def test_a_format_that_cannot_be_imported(install, spec, capsys, target):
    install("my-format", f"[petra_graph.plan_formats]\nshout = {target}\n", my_format=FORMAT)
    assert main(["plan", spec, "--format", "shout"]) == 4
    said = f"my-format: the format 'shout' ({target}) cannot be imported: "
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("form", ["html", "trace"])
def test_a_format_of_ours_that_is_not_installed(monkeypatch, spec, capsys, form):
    entries = [entry for entry in discovery.scan()[0] if entry.distribution != "petra-graph-report"]
    monkeypatch.setattr(discovery, "scan", lambda: (entries, ()))
    assert main(["plan", spec, "--format", form]) == 2
    assert capsys.readouterr().err == (
        f"the format '{form}' of plans is not installed\n"
        "    help: install petra-graph-report: in a clone of petra-graph, `pip install ./plugins/petra-graph-report`\n"
    )

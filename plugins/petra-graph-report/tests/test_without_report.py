"""The core without this distribution: what it says when it is asked for something of it."""

from __future__ import annotations

import pytest

from petra_graph.cli.main import main
from petra_graph.registry import discovery
from tests.support.runs import SPEC

INSTALL = "install petra-graph-report: in a clone of petra-graph, `pip install ./plugins/petra-graph-report`"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--compare",), "--compare needs petra-graph-report, which is not installed"),
        (("--scale", "1,2", "--json"), "--scale needs petra-graph-report, which is not installed"),
        (("--format", "html"), "the format 'html' of plans is not installed"),
        (("--format", "trace"), "the format 'trace' of plans is not installed"),
    ],
)
def test_an_option_of_plans(monkeypatch, write, capsys, words, message):
    spec = write("small.toml", SPEC)
    entries = [entry for entry in discovery.scan()[0] if entry.distribution != "petra-graph-report"]
    monkeypatch.setattr(discovery, "scan", lambda: (entries, ()))
    assert main(["plan", spec, *words]) == 2
    assert capsys.readouterr().err == f"{message}\n    help: {INSTALL}\n"

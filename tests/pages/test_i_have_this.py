"""The page "I have this": every spec of it trains with what it names, untouched."""

from __future__ import annotations

import json
from importlib.util import find_spec
from math import isfinite
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from tests.support import ROOT
from tests.support.pages import Page, files_of

PAGE = Page(ROOT / "plugins" / "guide" / "i_have_this.md")
SPECS = [name for name in files_of(PAGE) if name.endswith(".toml") and name != "base.toml"]
QUICKSTART = (ROOT / "specs" / "quickstart.toml").read_text()


def test_there_are_ten_headings():
    assert PAGE.text.count("\n## ") == 10


@pytest.mark.parametrize("name", SPECS)
def test_it_trains(name, write, capsys):
    if name == "metric.toml" and find_spec("torchmetrics") is None:
        pytest.skip("torchmetrics is not installed")
    for file, text in {**files_of(PAGE), "quickstart.toml": QUICKSTART}.items():
        write(file, text)
    assert main(["run", name, "--json", "--set", "run.epochs=1", "--set", "run.micro_batches=4"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert isfinite(summary["test"]["loss"])
    assert 0 <= summary["test"]["top1"] <= 1
    assert (Path(summary["directory"]) / "weights.safetensors").exists()

"""Plugins of every kind in a file beside the spec, without a package: they train, and are found again from elsewhere."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from petra_graph.cli.main import main
from petra_graph.plugins.kinds import BLOCK, KINDS
from tests.support import ROOT
from tests.support.pages import Page, files_of


def in_files() -> dict[str, str]:
    """Return the module and the spec of the guide's package, with names of code in place of those of entry points."""
    files = files_of(Page(ROOT / "plugins" / "guide" / "package.md"))
    groups = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"]
    module, spec = files["petra_graph_examples.py"], files["example.toml"]
    for name, target in [item for points in groups.values() for item in points.items()]:
        module, spec = (text.replace(f'"{name}"', f'"{target}"') for text in (module, spec))
    return {"petra_graph_examples.py": module, "example.toml": spec}


FILES = in_files()


def test_the_spec_has_every_kind():
    kinds = {kind.table: kind for kind in KINDS}
    used = {kinds[table] for table in tomllib.loads(FILES["example.toml"]) if table in kinds}
    assert used | {BLOCK} == {kind for kind in KINDS if kind.table} | {BLOCK}


def test_they_train_and_their_metrics_are_shown(here, write, monkeypatch, capsys):
    """The module lies beside the spec, and the command runs elsewhere."""
    for name, text in FILES.items():
        write(f"specs/{name}", text)
    (here / "work").mkdir()
    monkeypatch.chdir(here / "work")
    assert main(["validate", "../specs/example.toml"]) == 0
    capsys.readouterr()
    assert main(["run", "../specs/example.toml", "--json", "--set", "run.epochs=1"]) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert set(summary["test"]) == {"loss", "top1", "separated", "WorstClass"}
    assert "separated" in printed.err.splitlines()[-1]
    directory = Path(summary["directory"])
    assert "test/separated is " in (directory / "metrics.txt").read_text()
    assert main(["evaluate", str(directory)]) == 0  # the classes are found again, from elsewhere
    assert "separated" in capsys.readouterr().out
    assert main(["report", str(directory)]) == 0
    assert "final test/separated" in (directory / "report.html").read_text()

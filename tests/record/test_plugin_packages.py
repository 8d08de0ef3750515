"""A run whose plugins are gone names the package that had them."""

from __future__ import annotations

import os
import shutil

import pytest

from petra_graph.cli.main import main
from tests.support.runs import SPEC, only_run

ENTRIES = """\
[petra_graph.blocks]
mine-rev = petra_graph.catalog.blocks:RevMlp
mine-stem = petra_graph.catalog.blocks:LinearStem
"""


@pytest.fixture
def package(install, write):
    """Where a run has trained with two blocks of it."""
    folder = install("my-blocks", ENTRIES)
    text = SPEC.replace('"rev-mlp"', '"mine-rev"').replace('"linear-stem"', '"mine-stem"')
    settings = ["checkpoint.every='1 epoch'"]
    trial = ["--fast-dev-run", *(word for one in settings for word in ("--set", one))]
    assert main(["run", write("small.toml", text), *trial]) == 0
    return folder


@pytest.mark.parametrize("command", ["evaluate latest", "run --resume latest", "validate {run}/resolved.toml"])
def test_the_package_is_named_once_with_its_version(package, capsys, command):
    shutil.rmtree(package)
    capsys.readouterr()
    assert main(command.format(run=only_run()).split()) == 4
    said = "the run's plugins: my-blocks is not installed\n    help: install my-blocks 1.0\n"
    assert capsys.readouterr().err == said


def test_a_package_that_has_a_block_no_longer(package, capsys):
    (package / "entry_points.txt").write_text(ENTRIES.replace("mine-rev", "renamed"))
    os.utime(package.parent)  # as an installation does
    assert main(["evaluate", "latest"]) == 4
    said = 'my-blocks has no block "mine-rev", which that of the run had\n    help: install my-blocks 1.0\n'
    assert said in capsys.readouterr().err

"""The examples of specs/gallery: each is whole, says what it shows, and begins to train by its own command."""

import re
import shlex
import subprocess
from itertools import takewhile
from pathlib import Path

import pytest
from attrs import frozen

from petra_graph.cli.main import main
from tests.support import ROOT
from tests.support.pages import copy_by_links

GALLERY = ROOT / "specs" / "gallery"


@frozen
class Example:
    """An example, with what its heading comment says: lines of words, then commands, then its seconds and its result."""

    path: Path

    @property
    def heading(self) -> list[str]:
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return [line.removeprefix("#").removeprefix(" ") for line in takewhile(lambda one: one.startswith("#"), lines)]

    @property
    def commands(self) -> list[str]:
        return [line.strip() for line in self.heading[:-1] if line.startswith("  ")]


EXAMPLES = [Example(path) for path in sorted(GALLERY.glob("*.toml"))]


def by_name(example):
    return example.path.stem


def test_the_table_says_what_headings_say():
    lines = (GALLERY / "README.md").read_text(encoding="utf-8").splitlines()
    rows = {line.partition("]")[0]: line for line in lines if line.startswith("| [")}
    assert len(rows) == len(EXAMPLES) >= 10
    for example in EXAMPLES:
        name = example.path.stem
        shows = " ".join(line for line in example.heading if not line.startswith("  "))
        seconds, _, result = example.heading[-1].strip().partition(" s: ")
        command = example.commands[-1]
        assert re.match(rf"petra-graph (run|sweep) specs/gallery/{example.path.name}( |$)", command)
        cell = "" if command == f"petra-graph run specs/gallery/{example.path.name}" else f"`{command}`"
        assert rows[f"| [{name}"] == f"| [{name}]({example.path.name}) | {shows} | {cell} | {seconds} | {result} |"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    folder = tmp_path / "repository"
    copy_by_links(ROOT, folder)
    # What a path of a spec is relative to is its folder, which a link would put into the repository itself.
    (folder / "specs").unlink()
    copy_by_links(ROOT / "specs", folder / "specs")
    (folder / "specs" / "gallery").unlink()
    copy_by_links(GALLERY, folder / "specs" / "gallery")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("example", EXAMPLES, ids=by_name)
def test_its_commands_train(example, repository, capsys):
    """Two micro-batches of it; several processes stop before the training, and sweeps are planned; tests of their own have both."""
    for command in example.commands:
        program, *words = shlex.split(command)
        if program != "petra-graph":
            subprocess.run(command, shell=True, check=True)
            continue
        short = "--dry-run" if "--processes" in words else "--plan" if words[0] == "sweep" else "--fast-dev-run"
        assert main([*words, short]) == 0, capsys.readouterr().err
        assert capsys.readouterr().out
        assert short != "--fast-dev-run" or list(repository.glob("runs/*"))

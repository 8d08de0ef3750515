"""The examples of specs/gallery: each is whole, says what it shows, and begins to train by its own command."""

from __future__ import annotations

import re
import shlex
import subprocess
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
        comment = lines[: next(place for place, line in enumerate(lines) if not line.startswith("#"))]
        return [line.removeprefix("#").removeprefix(" ") for line in comment]

    @property
    def shows(self) -> str:
        return " ".join(line for line in self.heading if not line.startswith("  "))

    @property
    def commands(self) -> list[str]:
        return [line.strip() for line in self.heading[:-1] if line.startswith("  ")]

    @property
    def result(self) -> str:
        return self.heading[-1].strip()


EXAMPLES = [Example(path) for path in sorted(GALLERY.glob("*.toml"))]


def by_name(example):
    return example.path.stem


def test_there_are_ten_or_more():
    assert len(EXAMPLES) >= 10


@pytest.mark.parametrize("example", EXAMPLES, ids=by_name)
def test_its_heading_says_what_it_shows_its_command_its_seconds_and_its_result(example):
    assert example.shows.endswith(".")
    assert re.match(rf"petra-graph (run|sweep) specs/gallery/{example.path.name}( |$)", example.commands[-1])
    assert re.fullmatch(r"\d+ s: .*\d.*", example.result)


@pytest.mark.parametrize("example", EXAMPLES, ids=by_name)
def test_the_table_says_the_same(example):
    rows = [
        [cell.strip() for cell in line.split(" | ")]
        for line in (GALLERY / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| [")
    ]
    assert len(rows) == len(EXAMPLES)
    (row,) = [row for row in rows if row[0].startswith(f"| [{example.path.stem}]({example.path.name})")]
    seconds, _, result = example.result.partition(" s: ")
    assert row[1:] == [example.shows, f"`{example.commands[-1]}`", seconds, f"{result} |"]


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

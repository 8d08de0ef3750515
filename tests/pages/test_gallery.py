"""The examples of specs/gallery: each is whole and begins to train by its own command."""

import shlex
import subprocess
from itertools import takewhile

import pytest

from petra_graph.cli.main import main
from tests.support import ROOT
from tests.support.pages import copy_by_links

GALLERY = ROOT / "specs" / "gallery"


EXAMPLES = sorted(GALLERY.glob("*.toml"))


def commands(example):
    """Those in the comment at its head, whose last line tells seconds and result."""
    *head, _ = takewhile(lambda line: line.startswith("#"), example.read_text(encoding="utf-8").splitlines())
    return [line[1:].strip() for line in head if line.startswith("#   ")]


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


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_its_commands_train(example, repository, capsys):
    """Two micro-batches of it; several processes stop before the training, and sweeps are planned; tests of their own have both."""
    for command in commands(example):
        program, *words = shlex.split(command)
        if program != "petra-graph":
            subprocess.run(command, shell=True, check=True)
            continue
        short = "--dry-run" if "--processes" in words else "--plan" if words[0] == "sweep" else "--fast-dev-run"
        assert main([*words, short]) == 0, capsys.readouterr().err
        assert capsys.readouterr().out
        assert short != "--fast-dev-run" or list(repository.glob("runs/*"))

"""A specification that extends one of another folder: its profile, its weights and its block's module lie beside the file that names them."""

from __future__ import annotations

import json
import tomllib

import pytest

from petra_graph.cli.main import main
from tests.support.local_block import MODULE, SPEC


@pytest.fixture
def deep(write, here):
    """A specification two folders away from its base, which has a block, a profile and a data set's root of its own."""
    write("base/my_module.py", MODULE)
    write("base/base.toml", f'{SPEC}\n[partition]\nprofile = "times.json"\n')
    write("mine/a.toml", 'extends = "../base/base.toml"\n[run]\nepochs = 1\nmicro_batches = 2\n')
    return here


def test_they_are_found_and_the_resolved_spec_finds_them_from_elsewhere(deep, monkeypatch, capsys):
    assert main(["profile", "mine/a.toml", "--set", "data.workers=0", "--output", "base/times.json"]) == 0
    assert main(["run", "mine/a.toml"]) == 0
    (run,) = (deep / "runs").iterdir()
    resolved = tomllib.loads((run / "resolved.toml").read_text())
    assert resolved["partition"]["profile"] == str(deep / "base" / "times.json")
    assert json.loads((run / "env.json").read_text())["folders"] == [str(deep / "mine"), str(deep / "base")]
    capsys.readouterr()
    (deep / "elsewhere").mkdir()
    monkeypatch.chdir(deep / "elsewhere")
    assert main(["evaluate", str(run)]) == 0
    assert main(["run", "../mine/a.toml", "--set", "run.directory='there'", "--dry-run"]) == 0


def test_expanded_it_says_the_same_in_any_folder(deep, monkeypatch, capsys):
    assert main(["plan", "mine/a.toml", "--set", "init.weights='here'", "--expand", "--output", "one/whole.toml"]) == 0
    whole = tomllib.loads((deep / "one" / "whole.toml").read_text())
    assert whole["partition"]["profile"] == str(deep / "base" / "times.json")
    assert whole["init"]["weights"] == str(deep / "here")


def test_a_root_is_relative_to_its_file(write, capsys, deep):
    write("mine/my_module.py", MODULE)
    write("mine/a.toml", SPEC.replace('name = "digits"', 'name = "cifar10"\noptions = { root = "files" }'))
    assert main(["run", "mine/a.toml", "--dry-run"]) == 2
    assert "/mine/files is not a folder" in capsys.readouterr().err

"""`block = "my_module:MyBlock"`: ten lines beside a spec train, without a package."""

from __future__ import annotations

import json
import sys

import pytest

from petra_graph.cli.main import main
from tests.support import ROOT
from tests.support.forks import command
from tests.support.local_block import MODULE, SPEC

NO_FOLDER = [ROOT]
"""As for the installed command: its own folder, not the current one, is on Python's path."""


@pytest.fixture
def folder(write, here):
    write("my_module.py", MODULE)
    write("local.toml", SPEC)
    return here


@pytest.fixture
def forgotten(monkeypatch):
    """Whatever this process imports from the folder, it forgets afterwards."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield
    sys.modules.pop("my_module", None)


@pytest.mark.slow
@pytest.mark.processes
def test_it_trains(folder):
    done = command("run", "local.toml", "--json", paths=NO_FOLDER)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["test"]["top1"] > 0.4  # chance is 0.1


@pytest.mark.processes
def test_it_is_valid_as_far_as_can_be_known_without_torch(folder):
    done = command("validate", "local.toml", paths=NO_FOLDER)
    assert done.returncode == 0, done.stderr
    assert "my_module:MyBlock" in done.stdout + done.stderr


def test_the_module_lies_beside_the_spec_or_where_the_command_runs(folder, forgotten, monkeypatch, tmp_path_factory):
    """A run's resolved.toml lies in the run's directory, and is run where the run was."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "copied.toml").write_text((folder / "local.toml").read_text())
    assert main(["run", str(elsewhere / "copied.toml"), "--dry-run"]) == 0
    sys.modules.pop("my_module")
    sys.path[:] = [path for path in sys.path if path not in (str(folder), str(elsewhere))]
    monkeypatch.chdir(elsewhere)
    assert main(["run", str(folder / "local.toml"), "--dry-run"]) == 0


def test_a_module_that_is_nowhere(folder, forgotten, monkeypatch, tmp_path_factory, capsys):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "copied.toml").write_text((folder / "local.toml").read_text())
    monkeypatch.chdir(elsewhere)
    assert main(["run", "copied.toml", "--dry-run"]) == 2
    assert "block \"my_module:MyBlock\" has no module: 'my_module' is neither importable" in capsys.readouterr().err


@pytest.mark.parametrize(
    "case",
    [
        ("AdditiveCoupling):", "nn.Module):", 4, "is not a class with a `kind`, as blocks are"),
        ("return self.conv(x)", "return self.cnv(x)", 2, "object has no attribute 'cnv'"),
        ("padding=1", "padding=0", 2, "cannot read its input"),
        ("class MyBlock", "class YourBlock", 4, "the module 'my_module' has no class 'MyBlock'"),
    ],
)
def test_a_block_that_is_not_ready_is_reported_before_the_run(folder, forgotten, capsys, case):
    old, new, code, message = case
    (folder / "my_module.py").write_text(MODULE.replace(old, new))
    assert main(["run", "local.toml", "--dry-run"]) == code
    assert message in capsys.readouterr().err

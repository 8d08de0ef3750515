"""A block from outside: its distribution is built, installed where it was not, and trained with."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.support import ROOT
from tests.support.environments import environment

pytestmark = [pytest.mark.processes, pytest.mark.slow]
BLOCK = "rev-convnext"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The plugin's folder, copied: a spec is written beside its own."""
    left_behind = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", ".*", "runs")
    name, folder = "petra-graph-convnext", tmp_path_factory.mktemp("source")
    return shutil.copytree(ROOT / "plugins" / name, folder / name, ignore=left_behind)


@pytest.fixture(scope="module")
def installed(source, tmp_path_factory):
    """An environment with the plugin."""
    made = environment(tmp_path_factory.mktemp("installed"), editable=True)
    made.install(source)
    return made


def test_it_is_listed_and_checked(installed):
    listed = {one["name"]: one for one in json.loads(installed.forked("list", "blocks", "--json"))}
    assert listed[BLOCK] == {"kind": "blocks", "name": BLOCK, "distribution": "petra-graph-convnext", "fault": ""}
    assert "kernel     an integer  7" in installed.forked("list", BLOCK)
    assert f"blocks/{BLOCK}: 10 kept\n" in installed.forked("check", BLOCK)


def test_its_example_is_valid_and_its_options_are_checked(installed, source):
    example = str(source / "example.toml")
    assert installed.forked("validate", example)
    bent = source / "even.toml"
    bent.write_text((source / "example.toml").read_text().replace("kernel = 5", "kernel = 4"))
    done = installed.fork("validate", str(bent))
    assert done.returncode == 2
    assert "kernel must be odd, and expansion at least 1 (got 4 and 2)" in done.stderr


def test_it_trains(installed, source):
    printed = installed.forked("run", str(source / "example.toml"), "--set", "run.epochs=2", "--json")
    summary = json.loads(printed)
    assert summary["test"]["top1"] > 0.8
    assert BLOCK in (installed.folder / summary["directory"] / "resolved.toml").read_text()


def test_its_own_tests_pass(installed, source):
    done = installed.fork("-q", "-p", "no:cacheprovider", f"--rootdir={source}", str(source), program="pytest:main")
    assert done.returncode == 0, done.stdout + done.stderr

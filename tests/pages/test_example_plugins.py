"""Packages of plugins, the guide's of every kind and the one to copy: pip installs them, their checks and tests pass, their specs train."""

import json
import re
import shutil
import tomllib

import pytest

from tests.support import ROOT
from tests.support.environments import pip
from tests.support.forks import PETRA_GRAPH, command
from tests.support.pages import Page, files_of

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The folders of both packages by name, installed in `site` of the folder above."""
    folder, options = tmp_path_factory.mktemp("packages"), ("--no-index", "--no-deps", "--no-build-isolation")
    for name, text in files_of(Page(ROOT / "plugins" / "guide" / "package.md")).items():
        (folder / "examples" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "examples" / name).write_text(text)
    left_behind = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", ".*", "runs")
    shutil.copytree(ROOT / "plugins" / "petra-graph-convnext", folder / "convnext", ignore=left_behind)
    sources = [str(folder / name) for name in ("examples", "convnext")]
    pip("install", "--quiet", *options, f"--target={folder / 'site'}", *sources, home=folder)
    return folder


def done(folder, *words, program=PETRA_GRAPH):
    found = command(*words, paths=[folder.parent / "site"], program=program, folder=folder)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def test_a_spec_that_uses_plugins_of_every_kind_trains(packages):
    package = packages / "examples"
    spec = tomllib.loads((package / "example.toml").read_text())
    declared = tomllib.loads((package / "pyproject.toml").read_text())["project"]["entry-points"]
    tables = [table for value in spec.values() for table in (value if isinstance(value, list) else [value])]
    used = {table["name"] for table in tables if isinstance(table, dict) and "name" in table}
    assert {name for group, points in declared.items() if group != "petra_graph.blocks" for name in points} <= used
    summary = json.loads(done(package, "run", "example.toml", "--json"))
    assert summary["test"]["top1"] > 0.9
    text = (package / summary["directory"] / "metrics.txt").read_text()
    assert f"test/top1 is {summary['test']['top1']:.4g}\n" in text
    results = json.loads(done(package, "check", "petra-graph-examples", "--json"))
    assert sum(len(result["checks"]) for result in results) >= 8


def test_the_block_to_copy_trains(packages):
    summary = json.loads(done(packages / "convnext", "run", "example.toml", "--set", "run.epochs=2", "--json"))
    assert summary["test"]["top1"] > 0.8


def test_their_own_tests_pass(packages):
    tests = ("../examples/test_plugins.py", "../convnext/test_petra_graph_convnext.py")
    words = ("-q", "-p", "no:cacheprovider", f"--rootdir={packages}", *tests)
    printed = done(packages / "examples", *words, program="pytest:main")
    assert int(re.search(r"(\d+) passed", printed)[1]) > 20, printed

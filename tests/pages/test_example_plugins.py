"""The guide in plugins/ makes a package with a plugin of each kind: pip installs it, its tests pass, its spec trains."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from tests.support import ROOT
from tests.support.environments import pip
from tests.support.forks import PETRA_GRAPH, command
from tests.support.pages import Page, files_of

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    for name, text in files_of(Page(ROOT / "plugins" / "guide" / "package.md")).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation")
    pip("install", *options, f"--target={folder / 'site'}", str(folder), home=folder)
    return folder


def done(package, *words, program=PETRA_GRAPH):
    found = command(*words, paths=[package / "site"], program=program, folder=package)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def test_a_spec_that_uses_all_of_them_trains(package):
    spec = tomllib.loads((package / "example.toml").read_text())
    declared = tomllib.loads((package / "pyproject.toml").read_text())["project"]["entry-points"]
    tables = [table for value in spec.values() for table in (value if isinstance(value, list) else [value])]
    used = {table["name"] for table in tables if isinstance(table, dict) and "name" in table}
    assert {name for group, points in declared.items() if group != "petra_graph.blocks" for name in points} <= used
    code = (package / "petra_graph_examples.py").read_text()
    assert all(f'block="{block}"' in code for block in declared["petra_graph.blocks"])
    summary = json.loads(done(package, "run", "example.toml", "--json"))
    assert summary["test"]["top1"] > 0.9
    assert "stopped_early" not in summary
    text = (package / summary["directory"] / "metrics.txt").read_text()
    assert f"test/top1 is {summary['test']['top1']:.4g}\n" in text


def test_its_own_tests_pass(package):
    printed = done(package, "-q", "-p", "no:cacheprovider", "test_plugins.py", program="pytest:main")
    assert int(re.search(r"(\d+) passed", printed)[1]) > 12, printed


def test_its_spec_and_all_of_the_distribution_are_checked(package):
    for asked in ("example.toml", "petra-graph-examples"):
        results = json.loads(done(package, "check", asked, "--json"))
        assert sum(len(result["checks"]) for result in results) > 10

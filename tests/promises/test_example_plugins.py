"""plugins/README.md makes a package with a plugin of each kind: pip installs it, its tests pass, its spec trains."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib

import pytest

from tests.support import ROOT
from tests.support.pages import Page, files_of

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    for name, text in files_of(Page(ROOT / "plugins" / "README.md")).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    python(folder, "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target=site", ".")
    return folder


def python(folder, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(folder), "PYTHONPATH": f"{folder / 'site'}:{ROOT}", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_spec_that_uses_all_of_them_trains(package):
    spec = tomllib.loads((package / "example.toml").read_text())
    declared = tomllib.loads((package / "pyproject.toml").read_text())["project"]["entry-points"]
    tables = [table for value in spec.values() for table in (value if isinstance(value, list) else [value])]
    used = {table["name"] for table in tables if isinstance(table, dict) and "name" in table}
    assert {name for group, points in declared.items() if group != "petra_graph.blocks" for name in points} <= used
    nodes = (package / "src" / "petra_graph_examples" / "declared.py").read_text()
    assert all(f'block="{block}"' in nodes for block in declared["petra_graph.blocks"])
    summary = json.loads(python(package, "petra_graph", "run", "example.toml", "--json"))
    assert summary["test"]["top1"] > 0.9
    assert "stopped_early" not in summary
    text = (package / summary["directory"] / "metrics.txt").read_text()
    assert f"test/top1 is {summary['test']['top1']:.4g}\n" in text


def test_its_own_tests_pass(package):
    printed = python(package, "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert int(re.search(r"(\d+) passed", printed)[1]) > len(kinds_tested(package)) == 9, printed


def kinds_tested(package):
    """The kinds whose promises the page tests, each of which makes several."""
    return {kind for test in package.glob("tests/*.py") for kind in re.findall(r"(\w*Trial)\.of\(", test.read_text())}


def test_all_of_the_distribution_are_checked(package):
    printed = python(package, "petra_graph", "check", "petra-graph-examples", "--json")
    assert {result["status"] for result in json.loads(printed)} == {"kept"}

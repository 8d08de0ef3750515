"""The package of torchvision's networks installs beside the core with pip, works, and leaves nothing when it is uninstalled."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.support import ROOT
from tests.support.environments import environment, pip

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]
PLUGIN = ROOT / "plugins" / "petra-graph-torchvision"
OURS = {
    "blocks": {"torchvision-piece", "torchvision-head", "dual-residual-entry", "dual-residual"},
    "architectures": {"torchvision", "torchvision-dr2net"},
    "callbacks": {"dual-residual-schedule"},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    left_behind = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", ".*", "runs")
    return shutil.copytree(PLUGIN, tmp_path_factory.mktemp("source") / PLUGIN.name, ignore=left_behind)


def plugins_of(made):
    found = json.loads(made.petra_graph("list", "--json"))
    assert [one for one in found if one["fault"]] == []
    return {(one["group"], one["name"]) for one in found if one["distribution"] == PLUGIN.name}


def test_it_installs_passes_its_tests_and_uninstalls(source, tmp_path):
    made = environment(tmp_path, editable=True)
    before = {path for path in (tmp_path / "venv").rglob("*") if "__pycache__" not in path.parts}
    made.install(source)
    assert plugins_of(made) == {(group, name) for group, names in OURS.items() for name in names}
    done = made("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=source)
    assert done.returncode == 0, done.stdout + done.stderr

    pip("--python", str(made.python), "uninstall", "--quiet", "--yes", PLUGIN.name, home=made.folder)
    after = {path for path in (tmp_path / "venv").rglob("*") if "__pycache__" not in path.parts}
    assert after == before
    assert plugins_of(made) == set()
    done = made("-m", "petra_graph", "validate", str(source / "specs" / "resnet18_fashion_mnist.toml"))
    assert done.returncode == 2
    assert 'unknown architecture "torchvision"' in done.stderr
    assert "Traceback" not in done.stderr

"""The versions that are promised are those that the workflow tests."""

from __future__ import annotations

import re
import subprocess
import tomllib

from tests.support import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = (ROOT / ".github" / "workflows" / "test.yml").read_text()
VISION = tomllib.loads((ROOT / "plugins" / "petra-graph-vision" / "pyproject.toml").read_text())["project"]
LOWEST = dict(line.split(">=") for line in [*VISION["dependencies"], *PROJECT["dependencies"]])


def in_workflow(key: str) -> list[str]:
    return re.findall(rf'^ +(?:- )?{key}: "(.*)"$', WORKFLOW, re.MULTILINE)


def test_the_lowest_and_the_newest_torch_are_tested():
    lowest = " ".join(f"{name}=={LOWEST[name]}.*" for name in ("torch", "torchvision"))
    assert in_workflow("torch") == [lowest, "torch torchvision"]


def test_the_lowest_and_the_newest_python_are_tested():
    supported = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if ":: 3." in name]
    assert PROJECT["requires-python"] == f">={supported[0]}"
    assert in_workflow("python") == [supported[0], supported[-1]]


def test_the_workflow_calls_what_everybody_calls():
    assert "run: .ci/run" in WORKFLOW
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_make_installs_the_torch_that_it_is_told():
    told = {"TORCH": "torch==2.8.* torchvision==0.23.*", "VENV": "elsewhere"}
    words = ["make", "--dry-run", "test", *(f"{name}={value}" for name, value in told.items())]
    planned = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"pip install --quiet {told['TORCH']}" in planned

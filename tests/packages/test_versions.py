"""The core, the distributions of plugins/ and the list of changes have one version."""

import re
import tomllib

import pytest

from petra_graph import __version__
from tests.support import ROOT

BOUND = ">=" + ".".join(__version__.split(".")[:2])
PROJECTS = {path.parent.name: path.read_text() for path in (ROOT / "plugins").glob("*/pyproject.toml")}


def requirements(text):
    """Yield what a project requires of this project's distributions with a bound, extras left out."""
    project = tomllib.loads(text)["project"]
    groups = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
    for requirement in (one for group in groups for one in group):
        if requirement.startswith("petra-graph") and ">=" in requirement:
            yield re.sub(r"\[.*\]", "", requirement)


@pytest.mark.parametrize("name", PROJECTS)
def test_a_distribution_has_the_core_s_version_and_asks_for_it(name):
    assert tomllib.loads(PROJECTS[name])["project"]["version"] == __version__
    asked = list(requirements(PROJECTS[name]))
    assert f"petra-graph{BOUND}" in asked
    assert {re.sub(r"^petra-graph[a-z-]*", "", one) for one in asked} == {BOUND}, asked


def test_the_changes_begin_with_it():
    text = (ROOT / ".github" / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\d+\.\d+\.\d+.*)$", text, re.MULTILINE)[0] == __version__

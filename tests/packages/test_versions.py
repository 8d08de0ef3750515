"""The core, the distributions of plugins/ and the list of changes have one version."""

import re
import tomllib

from petra_graph import __version__
from tests.support import ROOT

BOUND = ">=" + ".".join(__version__.split(".")[:2])


def test_all_have_the_core_s_version_and_ask_for_it():
    for path in (ROOT / "plugins").glob("*/pyproject.toml"):
        project = tomllib.loads(path.read_text())["project"]
        groups = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
        asked = [one for group in groups for one in group if one.startswith("petra-graph") and ">=" in one]
        assert project["version"] == __version__
        assert any(re.match(r"petra-graph(\[.*\])?>=", one) for one in asked)
        assert all(one.endswith(BOUND) for one in asked), asked
    text = (ROOT / ".github" / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\d+\.\d+\.\d+.*)$", text, re.MULTILINE)[0] == __version__

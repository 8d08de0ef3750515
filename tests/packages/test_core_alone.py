"""The core with torch and its other requirements, and no distribution of plugins/: it trains, and says what has the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.environments import PACKAGES, environment

pytestmark = [pytest.mark.processes, pytest.mark.slow]
QUICKSTART = str(ROOT / "specs" / "quickstart.toml")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """An environment that sees this one's packages, but for this project's distributions, whose metadata would be found as well."""
    folder = tmp_path_factory.mktemp("alone")
    made = environment(folder)
    others = folder / "others"
    others.mkdir()
    but_metadata_of_the_core = re.compile(r"(_editable_impl_|__editable__.*)?petra_graph(?!-)")
    for path in (path for packages in PACKAGES for path in sorted(Path(packages).iterdir())):
        if not but_metadata_of_the_core.match(path.name):
            (others / path.name).symlink_to(path)
    (made.place("purelib") / "parent.pth").write_text(f"{ROOT}\n{others}\n")
    return made


CODE = f"""
import importlib.metadata
from petra_graph.cli.main import main

assert [one.name for one in importlib.metadata.distributions() if "petra" in one.name] == ["petra-graph"]
spec = {QUICKSTART!r}
for words in (["validate"], ["plan"], ["run", "--set", "run.directory=run", "--fast-dev-run"]):
    assert main([*words, spec]) == 0, words
assert main(["validate", spec, "--set", "data.name=cifar10"]) == 2
"""


def test_it_plans_and_trains_and_what_another_distribution_has_is_unknown(alone):
    done = alone("-c", CODE)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stdout + done.stderr
    assert 'unknown data set "cifar10"' in done.stderr

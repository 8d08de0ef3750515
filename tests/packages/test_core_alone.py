"""The core with torch and its other requirements, and no distribution of plugins/: it trains, and says what has the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from petra_graph.registry.first_party import OF_JOINTS, OF_NAMES, OF_PLAN_FORMATS, OF_PLUGINS, OF_TABLES, OF_VERBS
from tests.support import ROOT
from tests.support.environments import PACKAGES, environment

pytestmark = [pytest.mark.processes, pytest.mark.slow]
QUICKSTART = str(ROOT / "specs" / "quickstart.toml")
SMALL = ("--set", "run.directory=run", "--fast-dev-run")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """An environment that sees this one's packages, but for this project's distributions, whose metadata would be found as well."""
    folder = tmp_path_factory.mktemp("alone")
    made = environment(folder, editable=False)
    others = folder / "others"
    others.mkdir()
    but_metadata_of_the_core = re.compile(r"(_editable_impl_|__editable__.*)?petra_graph(?!-)")
    for path in (path for packages in PACKAGES for path in sorted(Path(packages).iterdir())):
        if not but_metadata_of_the_core.match(path.name):
            (others / path.name).symlink_to(path)
    (made.packages / "parent.pth").write_text(f"{ROOT}\n{others}\n")
    return made


def refused(done, distribution):
    """Assert that a command ended as bad usage, with what to install."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert distribution in done.stderr
    assert re.search(r"pip install [./\w -]*plugins/" + distribution, " ".join(done.stderr.split()))


def test_no_distribution_is_seen(alone):
    done = alone(
        "-c", "import importlib.metadata as m; print(*[d.name for d in m.distributions() if 'petra' in d.name])"
    )
    assert done.stdout.split() == ["petra-graph"]


@pytest.mark.parametrize("verb", [("validate",), ("plan",), ("run", *SMALL)])
def test_it_plans_and_trains(alone, verb):
    done = alone("-m", "petra_graph", verb[0], QUICKSTART, *verb[1:])
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stdout + done.stderr


@pytest.mark.parametrize("verb", sorted(OF_VERBS))
def test_a_verb_of_another_distribution(alone, verb):
    refused(alone("-m", "petra_graph", verb), OF_VERBS[verb])


@pytest.mark.parametrize(
    ("asked", "distribution"),
    [
        (("plan", QUICKSTART, "--compare"), OF_JOINTS["compare"]),
        (("plan", QUICKSTART, "--vary", "data.batch=16,32"), OF_JOINTS["vary"]),
        (("plan", QUICKSTART, "--format", "html"), OF_PLAN_FORMATS["html"]),
        (("run", QUICKSTART, "--seeds", "2"), OF_JOINTS["sweep"]),
        (("run", QUICKSTART, "--set", "probe.per_epoch=2"), OF_JOINTS["probe"]),
        (("run", QUICKSTART, "--set", "optimizer.delay.predict=true"), OF_TABLES["optimizer.delay"]),
        (("validate", QUICKSTART, "--set", "data.name=cifar10"), OF_PLUGINS["datasets/cifar10"]),
        (("validate", QUICKSTART, "--set", "optimizer.name=lars"), OF_PLUGINS["optimizers/lars"]),
        (("validate", str(ROOT / "tools" / "studies" / "delay_gpt.toml")), OF_PLUGINS["architectures/gpt"]),
    ],
)
def test_what_another_distribution_does(alone, asked, distribution):
    refused(alone("-m", "petra_graph", *asked), distribution)


@pytest.mark.parametrize("name", sorted(OF_NAMES))
def test_a_name_of_the_package(alone, name):
    done = alone("-c", f"import petra_graph as pg; pg.{name}")
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"AttributeError: module 'petra_graph' has no attribute '{name}': install {OF_NAMES[name]}")

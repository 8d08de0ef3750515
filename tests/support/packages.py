"""The packages under plugins/, as somebody else installs them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from tests.support import ROOT
from tests.support.environments import Environment, environment, pip


def copied(name: str, folder: Path) -> Path:
    """Copy a package's sources into a folder, without what building and running it left behind."""
    left_behind = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", ".*", "runs")
    return Path(shutil.copytree(ROOT / "plugins" / name, folder / name, ignore=left_behind))


def expect_it_installs_and_uninstalls(
    source: Path,
    folder: Path,
    plugins: Mapping[str, Collection[str]],
    *,
    spec: str,
    architecture: str,
) -> None:
    """Install a package beside the core, run its tests except long ones, and uninstall it; nothing of it is left.

    Args:
        source: its folder.
        folder: for the environment.
        plugins: all that it registers, by group.
        spec: in its folder `specs`.
        architecture: the spec's, which needs the package.
    """
    made = environment(folder, editable=True)
    before = _files(folder)
    made.install(source)
    assert _plugins_of(made, source.name) == {(group, name) for group, names in plugins.items() for name in names}
    expect_its_tests_pass(made, source)

    pip("--python", str(made.python), "uninstall", "--quiet", "--yes", source.name, home=made.folder)
    assert _files(folder) == before
    assert _plugins_of(made, source.name) == set()
    done = made.fork("validate", str(source / "specs" / spec))
    assert done.returncode == 2
    assert f'architecture "{architecture}"' in done.stderr
    assert "Traceback" not in done.stderr


def expect_its_tests_pass(made: Environment, source: Path) -> None:
    """Run the tests of an installed package, except long ones."""
    words = ("-q", "-m", "not long", "-p", "no:cacheprovider", f"--rootdir={source}", str(source))
    done = made.fork(*words, program="pytest")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def _files(folder: Path) -> set[Path]:
    return {path for path in (folder / "venv").rglob("*") if "__pycache__" not in path.parts}


def _plugins_of(made: Environment, name: str) -> set[tuple[str, str]]:
    found = json.loads(made.forked("list", "--json"))
    assert [one for one in found if one["fault"]] == []
    return {(one["group"], one["name"]) for one in found if one["distribution"] == name}

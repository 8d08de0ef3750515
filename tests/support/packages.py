"""The packages under plugins/, as somebody else installs them."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support import ROOT
from tests.support.environments import Environment


def copied(name: str, folder: Path) -> Path:
    """Copy a package's sources into a folder, without what building and running it left behind."""
    left_behind = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", ".*", "runs")
    return Path(shutil.copytree(ROOT / "plugins" / name, folder / name, ignore=left_behind))


def expect_its_tests_pass(made: Environment, source: Path) -> None:
    """Run the tests of an installed package, except long ones."""
    words = ("-q", "-m", "not long", "-p", "no:cacheprovider", f"--rootdir={source}", str(source))
    done = made.fork(*words, program="pytest")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout

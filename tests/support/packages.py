"""The packages under plugins/, as somebody else installs them."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support import ROOT


def copied(name: str, folder: Path) -> Path:
    """Copy a package's sources into a folder, without what building and running it left behind."""
    left_behind = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", ".*", "runs")
    return Path(shutil.copytree(ROOT / "plugins" / name, folder / name, ignore=left_behind))

"""The environment of processes that tests start."""

from __future__ import annotations

import os

from tests.support import ROOT


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}

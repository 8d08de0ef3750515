"""The import of torch, which takes most of the time in which a run or a plan begins."""

from __future__ import annotations

import gc
import importlib
import sys


def import_torch() -> None:
    """Import torch while Python collects no garbage, and have its collector pass over all of it from then on.

    The collector would look at everything that has been imported again and again, a sixth of the import's time.
    """
    if "torch" in sys.modules:
        return
    gc.disable()
    try:
        importlib.import_module("torch")
    finally:
        gc.enable()
    gc.freeze()

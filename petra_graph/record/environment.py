"""The environment of a run, on which its numbers depend beside its specification."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from typing import Any

import torch

_PACKAGES = ("petra-graph", "torch", "torchvision", "numpy", "networkx")


def environment() -> dict[str, Any]:
    """Return versions, devices, threads and the command line."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "packages": {name: version(name) for name in _PACKAGES},
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "command": sys.argv,
    }

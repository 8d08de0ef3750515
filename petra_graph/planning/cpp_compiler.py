"""What torch's compiler needs to compile for a processor: whether it is on this machine."""

from __future__ import annotations

import os
import shlex
import shutil
import sysconfig
from pathlib import Path

REMEDY = "install it (on Debian: apt install g++ python3-dev), or name a compiler in CXX"


def lacking() -> str:
    """Return what is missing here; "" if nothing is."""
    compiler = os.environ.get("CXX", "g++")  # as torch._inductor.config.cpp.cxx has it
    if shutil.which(next(iter(shlex.split(compiler)), "")) is None:
        return f"a C++ compiler ({compiler})"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return "" if header.is_file() else f"Python's headers ({header})"

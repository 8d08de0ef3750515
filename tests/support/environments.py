"""This environment's pip and other programs, which download nothing."""

import os
import subprocess
import sys
from pathlib import Path


def pip(*arguments: str, home: Path) -> None:
    """Run this environment's pip."""
    done = call(sys.executable, "-m", "pip", *arguments, home=home)
    assert done.returncode == 0, done.stdout + done.stderr


def call(*command: str, home: Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    # Building wants a home that can be written, and installing would heed what the user's own asks of pip. Torch would look for its
    # backends among all entry points, and fail at the first distribution whose own cannot be read.
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(home), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    del variables["PYTHONPATH"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd or home, env=variables)

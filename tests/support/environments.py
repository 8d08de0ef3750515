"""Virtual environments that see this one's packages behind their own, so that nothing is downloaded."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from attrs import frozen

PACKAGES = tuple(sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
"""The folders of this environment's packages."""


@frozen(kw_only=True)
class Environment:
    """An interpreter, and the folder in which it is called."""

    python: Path
    folder: Path

    def __call__(self, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run the interpreter."""
        return _call(str(self.python), *command, home=self.folder, cwd=cwd or self.folder)

    def script(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program that an installed distribution put beside the interpreter."""
        return _call(str(self.python.with_name(name)), *arguments, home=self.folder, cwd=self.folder)

    def petra_graph(self, *arguments: str) -> str:
        """Run the command line and return what it prints."""
        done = self("-m", "petra_graph", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def packages(self) -> Path:
        """The folder of what is installed here."""
        where = str(self.folder / "venv")
        return Path(sysconfig.get_path("purelib", "venv", {"base": where, "platbase": where}))

    def install(self, *distributions: Path) -> None:
        """Install folders or files without their dependencies, whatever of the same names is seen behind."""
        options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed")
        pip("--python", str(self.python), "install", *options, *map(str, distributions), home=self.folder)


def pip(*arguments: str, home: Path) -> None:
    """Run this environment's pip."""
    done = _call(sys.executable, "-m", "pip", *arguments, home=home, cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr


def environment(folder: Path) -> Environment:
    """Create an environment in a folder, where its interpreter is called."""
    where = folder / "venv"
    venv.create(where, with_pip=False, symlinks=os.name == "posix")
    made = Environment(
        python=Path(sysconfig.get_path("scripts", "venv", {"base": str(where)})) / "python", folder=folder
    )
    (made.packages / "parent.pth").write_text("\n".join(PACKAGES) + "\n")
    return made


def _call(*command: str, home: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        # Building wants a home that can be written, and installing would heed what the user's own asks of pip. Torch would look for its
        # backends among all entry points, and fail at the first distribution whose own cannot be read.
        env=variables | {"OMP_NUM_THREADS": "1", "HOME": str(home), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )

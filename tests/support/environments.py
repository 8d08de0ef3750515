"""Virtual environments that see this one's packages behind their own, but for this project's, so that nothing is downloaded."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from attrs import frozen

OURS = re.compile(r"(_editable_impl_|__editable__.*)?petra_graph")
"""Begins the names of this project's distributions and of their metadata, among the packages."""


@frozen
class Environment:
    """A virtual environment in a folder, where its programs are called."""

    folder: Path

    def place(self, name: str) -> Path:
        """Return the folder of its scripts, or of what is installed in it."""
        base = str(self.folder / "venv")
        return Path(sysconfig.get_path(name, "venv", {"base": base, "platbase": base}))

    def __call__(self, *words: str, program: str = "python") -> subprocess.CompletedProcess[str]:
        return call(str(self.place("scripts") / program), *words, home=self.folder)

    def petra_graph(self, *words: str) -> str:
        """Run the command line and return what it prints."""
        done = self("-m", "petra_graph", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, *distributions: Path) -> None:
        """Install folders or files without their dependencies, whatever of the same names is seen behind."""
        options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed")
        python = str(self.place("scripts") / "python")
        pip("--python", python, "install", *options, *map(str, distributions), home=self.folder)


def environment(folder: Path) -> Environment:
    """Create an environment in a folder."""
    made = Environment(folder)
    venv.create(folder / "venv", with_pip=False, symlinks=os.name == "posix")
    behind = folder / "behind"
    behind.mkdir()
    for packages in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for path in Path(packages).iterdir():
            if not OURS.match(path.name):
                (behind / path.name).symlink_to(path)
    (made.place("purelib") / "parent.pth").write_text(f"{behind}\n")
    return made


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

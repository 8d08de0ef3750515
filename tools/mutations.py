"""Break the core by one line at a time, and see which test of a commit's own suite finds it.

    python tools/mutations.py 46637da WORKTREE

For each commit and each mutation of mutations.toml the commit is checked out into a folder of its own, the line is
changed, and pytest goes through the suite, the likely files first, until a test fails. A mutation that no test finds
is a promise that nothing holds. The exit code is 1 where any is not found.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import click
from attrs import field, frozen

ROOT = Path(__file__).parents[1]
MUTATIONS = Path(__file__).with_suffix(".toml")
WORKTREE = (".", "WORKTREE")
"""Names of the working tree, which stand in the place of a commit."""


@frozen(kw_only=True)
class Mutation:
    """One change of one line of the core."""

    name: str
    file: str
    old: str
    new: str
    first: tuple[str, ...] = field(converter=tuple)
    """Words in the paths of the test files that run first."""


@click.command()
@click.argument("commits", nargs=-1, required=True)
@click.option("--only", default="", help="Only mutations with this text in their names.")
@click.option("--limit", default=900, show_default=True, help="Seconds after which a suite that hangs is ended.")
def main(commits: tuple[str, ...], only: str, limit: int) -> None:
    listed = tomllib.loads(MUTATIONS.read_text(encoding="utf-8"))["mutation"]
    mutations = [mutation for mutation in (Mutation(**table) for table in listed) if only in mutation.name]
    missed = 0
    for commit in commits:
        for mutation in mutations:
            began = time.monotonic()
            found = found_by(commit, mutation, limit)
            missed += not found
            click.echo(f"{commit} | {mutation.name} | {found or 'NOT FOUND'} | {time.monotonic() - began:.0f} s")
    sys.exit(missed > 0)


def found_by(commit: str, mutation: Mutation, limit: int) -> str:
    """Return the first test that fails with a mutation; "" where none does."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        check_out(commit, folder)
        source = folder / mutation.file
        text = source.read_text(encoding="utf-8")
        if text.count(mutation.old) != 1:
            raise click.ClickException(
                f"{commit}: {mutation.file} has {mutation.name!r}'s text not once: {mutation.old}"
            )
        source.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        files = ordered(folder, mutation.first)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "--durations=0",
            "-rfE",
            *files,
        ]
        path = os.pathsep.join(map(str, (folder, *_sources(folder))))
        variables = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, check=False, cwd=folder, env=variables, capture_output=True, text=True, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return f"no end within {limit} s"
        failed = re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
        if done.returncode and not failed:
            raise click.ClickException(f"pytest: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return ", ".join(failed)


def check_out(commit: str, folder: Path) -> None:
    """Write a commit's files, or those of the working tree, into a folder."""
    if commit in WORKTREE:
        command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
        for name in filter(None, listed):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    else:
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)


def _sources(folder: Path) -> list[Path]:
    """Return the sources of the distributions whose tests `make test` runs."""
    config = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    places = config["tool"]["pytest"]["ini_options"]["testpaths"]
    sources = [folder / place / ".." / "src" for place in places]
    return [source.resolve() for source in sources if source.exists()]


def ordered(folder: Path, first: Sequence[str]) -> list[str]:
    """Return all test files, those with one of the words in their paths first, in the order of the words."""
    of_plugins = {source.parents[1] / "tests" for source in _sources(folder)}
    tests = chain.from_iterable(place.rglob("test_*.py") for place in (folder / "tests", *of_plugins))
    files = sorted(str(path.relative_to(folder)) for path in tests)
    return sorted(files, key=lambda file: next((at for at, word in enumerate(first) if word in file), len(first)))


if __name__ == "__main__":
    main()

"""Break the core by one line at a time, and see which of the likely tests of a commit finds it.

    python tools/mutations.py 919c694 --output tools/mutations-919c694.json

For each mutation of mutations.toml the line, wherever in the package it is now, is changed in a copy of the commit, and pytest goes through the test files that have
one of its words in their paths, in that order, until a test fails. Each goes on in a fork of this process, which has imported
torch. The results are one of: the test, "not found within its files", "no end within N s". A result that the output has already
is kept, so the program may be ended and begun again. The exit code is 1 where any mutation is not found.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import tomllib
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import click
import pytest
from attrs import field, frozen
from same_bits import installed

MUTATIONS = Path(__file__).with_suffix(".toml")
PRELOADED = ("torch", "sympy", "networkx", "hypothesis", "numpy", "safetensors.torch")
MISSED = "not found within its files"
_FORKS = get_context("fork")


@frozen(kw_only=True)
class Mutation:
    """One change of one line of the core."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = field(converter=tuple)
    """Words in the paths of the test files."""


class FirstFailure:
    """Notes the first test that fails, for pytest."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self._file.exists():
            self._file.write_text(report.nodeid, encoding="utf-8")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self._file.exists():
            self._file.write_text(f"{report.nodeid} cannot be collected", encoding="utf-8")


@click.command()
@click.argument("commit")
@click.option("--only", default="", help="Only mutations with this text in their names or files.")
@click.option("--limit", default=120, show_default=True, help="Seconds after which tests are ended.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Keep the results here, as JSON.")
def main(commit: str, only: str, limit: int, output: Path | None) -> None:
    """Try the mutations in COMMIT, or WORKTREE (or ".") for the files as they are."""
    listed = [Mutation(**table) for table in tomllib.loads(MUTATIONS.read_text(encoding="utf-8"))["mutation"]]
    mutations = [one for one in listed if only in one.name or only in one.file]
    found = dict(json.loads(output.read_text(encoding="utf-8"))) if output is not None and output.exists() else {}
    for module in PRELOADED:
        import_module(module)
    with tempfile.TemporaryDirectory(prefix="mutations-") as name:
        folder = Path(name, "commit")
        installed(commit, folder, needed=(".",))
        for mutation in (one for one in mutations if one.name not in found):
            began = time.monotonic()
            found[mutation.name] = tried(folder, mutation, Path(name, "failure"), limit)
            click.echo(f"{mutation.name} | {found[mutation.name]} | {time.monotonic() - began:.0f} s")
            if output is not None:
                output.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.exit(any(found[one.name] == MISSED for one in mutations))


def tried(folder: Path, mutation: Mutation, failure: Path, limit: int) -> str:
    """Return the first test that fails with a mutation, or why there is none."""
    source = place_of(folder, mutation)
    if source is None:
        return "no one file has this text once"
    text = source.read_text(encoding="utf-8")
    failure.unlink(missing_ok=True)
    source.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        child = _FORKS.Process(target=tests, args=(folder, mutation, failure))
        child.start()
        child.join(limit)
        ends = not child.is_alive()
        with suppress(ProcessLookupError):
            os.killpg(child.pid or 0, signal.SIGKILL)
        child.join()
    finally:
        source.write_text(text, encoding="utf-8")
    if failure.exists():
        return failure.read_text(encoding="utf-8")
    return MISSED if ends else f"no end within {limit} s"


def place_of(folder: Path, mutation: Mutation) -> Path | None:
    """Return the file that has the text once: the one that is named, or any other, where the text has moved."""
    files = sorted((folder / "petra_graph").rglob("*.py"))
    having = [
        file
        for file in files
        if mutation.old in (text := file.read_text(encoding="utf-8")) and text.count(mutation.old) == 1
    ]
    named = [file for file in having if file == folder / mutation.file] or having
    return named[0] if len(named) == 1 else None


def tests(folder: Path, mutation: Mutation, failure: Path) -> None:
    """Run the tests of a mutation, in a process of their own."""
    os.setsid()
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    sys.path[:] = [str(folder), *(place for place in sys.path if place != str(Path(__file__).parent))]
    # Else what a test forks by a server would import this program, which finds no neighbours then, and every such test failed.
    vars(sys.modules["__main__"]).pop("__file__", None)
    files = sorted(str(path.relative_to(folder)) for path in (folder / "tests").rglob("test_*.py"))
    chosen = list(dict.fromkeys(file for word in mutation.tests for file in files if word in file))
    with Path(os.devnull).open("w", encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *chosen], plugins=[FirstFailure(failure)])
    os._exit(0)


if __name__ == "__main__":
    main()

"""A plugin of pytest that writes down the command lines which tests call in their own process, with the files that these find.

    LINES_OF_TESTS=lines.jsonl python -m pytest -p tools.lines_of_tests tests/promises/test_mistakes.py

Each test is a line of JSON: for each call the files of the test's folder that are new or changed since the call before, the folders
on Python's path, and the arguments. A test with a large folder is left out, and one that works in several folders.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from petra_graph.cli import main as front

ROOT = Path(__file__).parents[1]
HERE, SHARED = "<here>", "<shared>"
"""What stands for a test's folder and for the repository's in arguments and files."""
_MOST_BYTES = 300_000


class Lines:
    """What the tests of a session have called."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.found: list[str] = []
        self.folder: Path | None = None
        self.lines: list[dict[str, Any]] = []
        self.files: dict[str, str] = {}
        self.whole = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        """Carry out a test, and write down what it called."""
        self.folder = getattr(item, "funcargs", {}).get("tmp_path")
        self.lines, self.files, self.whole = [], {}, True
        try:
            return (yield)
        finally:
            if self.lines and self.whole:
                self.found.append(json.dumps({"name": item.nodeid, "lines": self.lines}) + "\n")

    def pytest_sessionfinish(self) -> None:
        """Write everything, now that no test stands in the place of Python's functions."""
        self.output.write_text("".join(self.found))

    def note(self, arguments: Sequence[str] | None) -> None:
        """Write down a call."""
        inside = self.folder is not None and Path.cwd() == self.folder
        if arguments is None or not (inside or Path.cwd() == ROOT):
            self.whole = False
            return
        try:
            files = self._files() if self.folder else {}
        except (OSError, TypeError):  # the test refuses to read files
            self.whole = False
            return
        self.whole &= sum(map(len, files.values())) < _MOST_BYTES
        changed = {name: text for name, text in files.items() if self.files.get(name) != text}
        self.files = files
        paths = [self._portable(path) for path in sys.path if self.folder and path.startswith(str(self.folder))]
        words = [self._portable(str(word)) for word in arguments]
        self.whole &= not any(tempfile.gettempdir() in word for word in words)
        self.lines.append({"files": changed, "path": paths, "arguments": words})

    def _files(self) -> dict[str, str]:
        """Return the folder's files by name, those that are no text in base 64."""
        assert self.folder is not None
        found = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found[str(path.relative_to(self.folder))] = self._text(path.read_bytes())
        return found

    def _text(self, content: bytes) -> str:
        try:
            return self._portable(content.decode())
        except UnicodeDecodeError:
            return "base64:" + base64.b64encode(content).decode()

    def _portable(self, text: str) -> str:
        text = text.replace(str(self.folder), HERE) if self.folder else text
        return text.replace(str(ROOT), SHARED)


def _noted(whole: Callable[..., int], lines: Lines) -> Callable[..., int]:
    @functools.wraps(whole)
    def main(arguments: Sequence[str] | None = None) -> int:
        lines.note(arguments)
        return whole(arguments)

    return main


# When it is imported, which is before a conftest.py imports the command line.
_LINES = Lines(Path(os.environ["LINES_OF_TESTS"]))
front.main = _noted(front.main, _LINES)


def pytest_configure(config: pytest.Config) -> None:
    """Let the session say which test it carries out."""
    config.pluginmanager.register(_LINES)

"""The entry points of the installed distributions in our groups; this imports none of them, and little else, so that the help is quick.

Decision: one scan collects all groups, and reads each distribution's file by itself: `entrypoints`, which this file alone knows, would end its
scan at the first malformed file of any distribution, and reads in the locale's encoding, where the format is UTF-8.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from configparser import Error
from functools import lru_cache
from pathlib import Path
from typing import Any

from attrs import frozen

_OURS = re.compile(r"petra[-_.]?graph[-_.:]", re.IGNORECASE)
"""The beginning of a group's name that is ours, or is meant to be: `petra-graph.blocks` is misspelt, and must not go unnoticed."""
VERBS = "petra_graph.verbs"
"""The group of verbs of the command line: `report = "my_package.verbs:report"`, a click command. The help's line comes from its
module, so this imports what is heavy where it is used."""


@frozen(kw_only=True)
class Entry:
    """One line of a distribution's entry points; nothing is imported yet."""

    group: str
    name: str
    distribution: str
    target: str
    """The value of the line, "module:attribute"."""

    def load(self) -> Any:
        """Import the object that the entry point names, and raise whatever the import raises."""
        import entrypoints

        return entrypoints.EntryPoint.from_string(self.target, self.name).load()


def scan(search: Iterable[str] | None = None) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Return the entry points of all our groups, and the distributions whose entry points could not be read.

    Args:
        search: folders to search; None: `sys.path`. Where a distribution is there twice, the first one counts.
    """
    found: dict[str, tuple[Entry, ...] | None] = {}
    for folder in (Path(folder).absolute() for folder in (sys.path if search is None else search)):
        if folder.is_dir():
            found = _in_folder(str(folder), folder.stat().st_mtime_ns) | found
    unreadable = tuple(name for name, entries in found.items() if entries is None)
    return tuple(entry for entries in found.values() for entry in entries or ()), unreadable


@lru_cache(maxsize=64)
def _in_folder(folder: str, _changed: int) -> dict[str, tuple[Entry, ...] | None]:
    """Return the entries of a folder's distributions, None of one that cannot be read; one that comes or goes changes the folder."""
    import entrypoints

    found: dict[str, tuple[Entry, ...] | None] = {}
    for file in sorted(Path(folder).glob("*.*-info/entry_points.txt")):
        text = file.read_bytes()
        if b"petra" not in text.lower():
            continue
        owner = canonical(re.split(r"-|\.egg-info", file.parent.name)[0])  # "petra_graph-0.3.0.dist-info"
        try:
            points = entrypoints.CaseSensitiveConfigParser(delimiters=("=",), interpolation=None)
            points.read_string(text.decode())
        except (ValueError, Error):
            found[owner] = None
            continue
        lines = [(group, *line) for group in points.sections() if _OURS.match(group) for line in points.items(group)]
        entries = (Entry(group=group, name=name, distribution=owner, target=target) for group, name, target in lines)
        found.setdefault(owner, tuple(entries))
    return found


def canonical(distribution: str) -> str:
    """Return a distribution's name as package indices compare it: `Petra_Graph` is `petra-graph`."""
    return re.sub(r"[-_.]+", "-", distribution).lower()

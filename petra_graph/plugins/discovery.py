"""Entry points of the installed distributions: the one file that knows the `entrypoints` package.

Decision: one scan collects all groups, because a scan reads a file of every installed distribution. `entrypoints` ends
its scan at the first malformed file of any distribution, and reads in the locale's encoding, where the format is
UTF-8; then the standard library reads the distributions one by one, and the scan names those that it cannot read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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
    folders = tuple(sys.path if search is None else search)
    with suppress(Exception):  # another package's file may be malformed in any way
        by_distribution: dict[str, list[Entry]] = {}
        for folder in (Path(folder).absolute() for folder in folders):
            changed = folder.stat().st_mtime_ns if folder.exists() else 0
            for owner, entries in _with_entrypoints(str(folder), changed).items():
                by_distribution.setdefault(owner, entries)
        found = tuple(chain.from_iterable(by_distribution.values()))
        if all(f"{entry.group}{entry.name}{entry.target}".isascii() for entry in found):
            return found, ()
    readable, unreadable = _with_importlib(None if search is None else list(folders))
    return tuple(chain.from_iterable(readable.values())), tuple(unreadable)


def canonical(distribution: str) -> str:
    """Return a distribution's name as package indices compare it: `Petra_Graph` is `petra-graph`."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


@lru_cache(maxsize=64)
def _with_entrypoints(folder: str, _changed: int) -> dict[str, list[Entry]]:
    """Return the entries of a folder's distributions; a run asks several times, and a distribution that comes or goes changes its folder."""
    import entrypoints

    found: dict[str, list[Entry]] = {}
    for config, distribution in entrypoints.iter_files_distros(path=[folder], repeated_distro="first"):
        lines = [(group, *item) for group in config.sections() for item in config.items(group, raw=True)]
        _add(found, distribution.name, lines)
    return found


def _with_importlib(folders: list[str] | None) -> tuple[dict[str, list[Entry]], list[str]]:
    readable: dict[str, list[Entry]] = {}
    unreadable: list[str] = []
    for name, points in _distributions(folders):
        if points is None:
            unreadable.append(name)
        else:
            _add(readable, name, [(point.group, point.name, point.value) for point in points])
    return readable, unreadable


def _distributions(folders: list[str] | None) -> Iterator[tuple[str, list[EntryPoint] | None]]:
    """Yield the name and the entry points of each distribution; None where they cannot be read."""
    from importlib import metadata

    for distribution in metadata.distributions() if folders is None else metadata.distributions(path=folders):
        name = ""
        try:
            name = distribution.metadata["Name"]
            points = list(distribution.entry_points)
            yield canonical(name), points
        except Exception:  # noqa: BLE001  this distribution cannot be read; the others can
            # Its metadata do not give a name; its folder's name does, where it has a folder.
            yield canonical(name) if name else str(getattr(distribution, "_path", "one without a name")), None


def _add(found: dict[str, list[Entry]], distribution: str, lines: Iterable[tuple[str, str, str]]) -> None:
    """Add a distribution's lines (group, name, target) of our groups; where a distribution is there twice, those of the first."""
    owner = canonical(distribution)
    ours = [line for line in lines if _OURS.match(line[0])]
    entries = [Entry(group=group, name=name, distribution=owner, target=target) for group, name, target in ours]
    found.setdefault(owner, entries)

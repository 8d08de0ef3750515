"""Entry points of the installed distributions: the one file that knows the `entrypoints` package.

Decision: one scan collects all groups, because a scan reads a file of every installed distribution. `entrypoints` ends
its scan at the first malformed file, whoever's it is, and reads in the locale's encoding, where the format is UTF-8;
then the standard library reads the distributions one by one, and those that it cannot read are left out and named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from attrs import frozen

GROUP_PREFIX = "petra_graph."


@frozen(kw_only=True)
class Entry:
    """One line of a distribution's entry points; nothing is imported yet."""

    group: str
    name: str
    distribution: str
    target: str
    """What the line says: "module:attribute"."""

    def load(self) -> Any:
        """Import what the entry point names; whatever that raises, it raises."""
        import entrypoints

        parsed = entrypoints.EntryPoint.from_string(self.target, self.name)
        return parsed.load()


@frozen(kw_only=True)
class Scan:
    """What the installed distributions offer."""

    entries: tuple[Entry, ...]
    unreadable: tuple[str, ...] = ()
    """Distributions whose entry points could not be read."""


def scan(search: Iterable[str] | None = None) -> Scan:
    """Collect the entry points of all our groups.

    Args:
        search: folders to look into; None: `sys.path`. Of a distribution that is found twice the first counts.
    """
    folders = None if search is None else list(search)
    with suppress(Exception):  # anything may be wrong with somebody else's file
        found = tuple(_unique(_with_entrypoints(folders)))
        if all(f"{entry.group}{entry.name}{entry.target}".isascii() for entry in found):
            return Scan(entries=found)
    entries, unreadable = _with_importlib(folders)
    return Scan(entries=tuple(_unique(entries)), unreadable=tuple(unreadable))


def canonical(distribution: str) -> str:
    """Return a distribution's name as package indices compare it: `Petra_Graph` is `petra-graph`."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _with_entrypoints(folders: list[str] | None) -> Iterator[tuple[str, list[Entry]]]:
    import entrypoints

    for config, distribution in entrypoints.iter_files_distros(path=folders, repeated_distro="first"):
        name = canonical(distribution.name)
        yield (
            name,
            [
                Entry(group=group, name=key, distribution=name, target=target)
                for group in config.sections()
                if group.startswith(GROUP_PREFIX)
                for key, target in config.items(group, raw=True)
            ],
        )


def _with_importlib(folders: list[str] | None) -> tuple[list[tuple[str, list[Entry]]], list[str]]:
    from importlib import metadata

    found: list[tuple[str, list[Entry]]] = []
    unreadable: list[str] = []
    for distribution in metadata.distributions() if folders is None else metadata.distributions(path=folders):
        name = ""
        try:
            name = canonical(distribution.metadata["Name"])
            entries = [
                Entry(group=point.group, name=point.name, distribution=name, target=point.value)
                for point in distribution.entry_points
                if point.group.startswith(GROUP_PREFIX)
            ]
        except Exception:  # noqa: BLE001  this distribution cannot be read; the others can
            unreadable.append(name or "a distribution without a name")
        else:
            found.append((name, entries))
    return found, unreadable


def _unique(found: Iterable[tuple[str, list[Entry]]]) -> Iterator[Entry]:
    """Yield each distribution's entries once; an editable one may be found both by its metadata and in its folder."""
    seen: set[str] = set()
    for name, entries in found:
        if name not in seen:
            seen.add(name)
            yield from entries

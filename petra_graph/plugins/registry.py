"""The installed plugins by kind and name, as entry points: one is loaded when it is resolved. This imports little, so that the help is quick.

Decision: one scan collects all groups, and reads each distribution's file by itself: `entrypoints`, which this file alone knows, would end its
scan at the first malformed file of any distribution, and reads in the locale's encoding, where the format is UTF-8.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from configparser import Error
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import entrypoints
from attrs import field, frozen

from petra_graph.errors import PluginError, SpecError, shown, suggestion
from petra_graph.plugins.author_code import CODE_NAME, FIRST_PARTY, OWN, author_code, find_code

if TYPE_CHECKING:
    from petra_graph.plugins.contract import Plugin, PluginKind

VERBS = "petra_graph.verbs"
"""The group of verbs of the command line, click commands. The help's line comes from their modules, which import what is heavy where it is used."""


@frozen(kw_only=True)
class Entry:
    """One line of a distribution's entry points, `name = target`; nothing is imported yet."""

    group: str
    name: str
    distribution: str
    target: str

    def load(self) -> Any:
        return find_code(self.target)


def discover(search: Iterable[str] | None = None) -> Registry:
    """Return the plugins in these folders, or on `sys.path`, not imported; with PETRA_GRAPH_PLUGINS=0, without those of other projects."""
    found: dict[str, tuple[Entry, ...] | None] = {}
    for folder in (Path(folder).absolute() for folder in (sys.path if search is None else search)):
        if folder.is_dir():  # one whose distributions come or go has another time
            found = _in_folder(str(folder), folder.stat().st_mtime_ns) | found
    unreadable = tuple(name for name, entries in found.items() if entries is None)
    registry = Registry(
        entries=tuple(one for entries in found.values() for one in entries or ()), unreadable=unreadable
    )
    return registry.only(OWN) if os.environ.get("PETRA_GRAPH_PLUGINS") == "0" else registry


@lru_cache(maxsize=64)
def _in_folder(folder: str, _changed: int) -> dict[str, tuple[Entry, ...] | None]:
    """Return the entries of a folder's distributions, None of one that cannot be read."""
    found: dict[str, tuple[Entry, ...] | None] = {}
    for file in sorted(Path(folder).glob("*.*-info/entry_points.txt")):
        text = file.read_bytes()
        if b"petra" not in text.lower():
            continue
        owner = _canonical(re.split(r"-|\.egg-info", file.parent.name)[0])  # "petra_graph-0.3.0.dist-info"
        points = entrypoints.CaseSensitiveConfigParser(delimiters=("=",), interpolation=None)
        try:
            points.read_string(text.decode())
        except (ValueError, Error):
            found[owner] = None
            continue
        found.setdefault(
            owner,
            tuple(
                Entry(group=group, name=name, distribution=owner, target=target)
                for group in points.sections()
                if _canonical(group).startswith("petra-graph-")  # petra-graph.blocks is misspelt, and `list` tells it
                for name, target in points.items(group)
            ),
        )
    return found


def _canonical(name: str) -> str:
    """Return a name as package indices compare it: `Petra_Graph` is `petra-graph`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _here() -> tuple[str, ...]:
    """Return the current folder; nothing where it has been removed, from which runs elsewhere can still be listed."""
    with suppress(FileNotFoundError):
        return (os.getcwd(),)  # noqa: PTH109  sys.path holds strings
    return ()


@frozen(kw_only=True)
class Registry:
    """All entry points; `discover()` makes a registry, and callers pass it along."""

    entries: tuple[Entry, ...]
    unreadable: tuple[str, ...] = ()
    """Distributions whose entry points could not be read."""
    folders: tuple[str, ...] = field(factory=_here)
    """Where modules of local plugins may lie: the current folder, and the specification's before it."""

    def names(self, kind: PluginKind) -> tuple[str, ...]:
        return tuple(sorted({entry.name for entry in self.entries if entry.group == kind.group}))

    def only(self, distributions: Iterable[str]) -> Registry:
        """Return a registry of these distributions alone."""
        names = set(map(_canonical, distributions))
        return attrs.evolve(self, entries=tuple(entry for entry in self.entries if entry.distribution in names))

    def resolve(self, kind: PluginKind, name: str) -> Plugin:
        """Return the plugin of that name, or "module:attribute", loaded.

        SpecError: no plugin has that name. PluginError: two distributions have it, or it cannot be loaded, or breaks the contract of its kind.
        """
        from petra_graph.plugins.contract import plugin_of

        named = f"{kind.noun} {shown(name)}"
        if CODE_NAME.fullmatch(name):
            with author_code(f"{named} cannot be loaded"):
                try:
                    code = find_code(name, self.folders)
                except ModuleNotFoundError as error:
                    if error.name != re.split("[.:]", name)[0]:  # it imports a module that is not there
                        raise
                    raise SpecError(f"{named}: {error}, on Python's path or in {' and '.join(self.folders)}") from error
            return plugin_of(kind, name, code, folders=self.folders)

        entries = [entry for entry in self.entries if (entry.group, entry.name) == (kind.group, name)]
        # Decision: a name of the catalog is its own, so that no package that is installed besides changes a specification.
        entries = [entry for entry in entries if entry.distribution == FIRST_PARTY] or entries
        if not entries:
            raise SpecError(f"unknown {named}", suggestion(name, self.names(kind)))
        if len(entries) > 1:
            owners = " or ".join(shown(entry.target) for entry in entries)
            raise PluginError(f"{named} is in {len(entries)} distributions; write the code of one: {owners}")
        (entry,) = entries
        with author_code(f"{named} of {entry.distribution} cannot be loaded from {entry.target!r}"):
            code = entry.load()
        return plugin_of(kind, name, code, entry.distribution, self.folders)

"""The installed plugins by kind and name, as entry points: one is loaded when it is resolved. This imports little, so that the help is quick."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from configparser import Error
from contextlib import suppress
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


def discover(search: Iterable[str] | None = None) -> Registry:
    """Return the plugins in these folders, or on `sys.path`, not imported; with PETRA_GRAPH_PLUGINS=0, without those of other projects."""
    found: dict[str, list[Entry] | None] = {}  # of each distribution; None: its file cannot be read
    for folder in (Path(folder) for folder in (sys.path if search is None else search)):
        for file in sorted(folder.glob("*.*-info/entry_points.txt")) if folder.is_dir() else ():
            owner = _canonical(re.split(r"-|\.egg-info", file.parent.name)[0])  # "petra_graph-0.3.0.dist-info"
            # Each file by itself: the package's own scan would end at the first malformed one, and reads in the locale's encoding.
            if owner in found or b"petra" not in (text := file.read_bytes()).lower():
                continue
            points = entrypoints.CaseSensitiveConfigParser(delimiters=("=",), interpolation=None)
            found[owner] = None
            with suppress(ValueError, Error):
                points.read_string(text.decode())
                groups = [group for group in points.sections() if group.startswith("petra_graph.")]
                found[owner] = [
                    Entry(group=group, name=name, distribution=owner, target=target)
                    for group in groups
                    for name, target in points.items(group)
                ]
    unreadable = tuple(name for name, entries in found.items() if entries is None)
    every = tuple(one for entries in found.values() for one in entries or ())
    registry = Registry(entries=every, unreadable=unreadable)
    return registry.only(OWN) if os.environ.get("PETRA_GRAPH_PLUGINS") == "0" else registry


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
    unreadable: tuple[str, ...] = ()  # distributions whose entry points could not be read
    folders: tuple[str, ...] = field(factory=_here)  # of local modules: the current one, specifications' before it

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

        named, owner, target = f"{kind.noun} {shown(name)}", "", name
        if is_name := not CODE_NAME.fullmatch(name):
            entries = [entry for entry in self.entries if (entry.group, entry.name) == (kind.group, name)]
            # Decision: a name of the catalog is its own, so that no package that is installed besides changes a specification.
            entries = [entry for entry in entries if entry.distribution == FIRST_PARTY] or entries
            if not entries:
                raise SpecError(f"unknown {named}", suggestion(name, self.names(kind)))
            if len(entries) > 1:
                owners = " or ".join(shown(entry.target) for entry in entries)
                raise PluginError(f"{named} is in {len(entries)} distributions; write the code of one: {owners}")
            owner, target = entries[0].distribution, entries[0].target
        with author_code(f"{named}{f' of {owner}' * is_name} cannot be loaded{f' from {target!r}' * is_name}"):
            try:
                code: Any = find_code(target, () if is_name else self.folders)
            except ModuleNotFoundError as error:
                if is_name or error.name != re.split("[.:]", name)[0]:  # it imports a module that is not there
                    raise
                raise SpecError(f"{named}: {error}, on Python's path or in {' and '.join(self.folders)}") from error
        return plugin_of(kind, name, code, owner, self.folders)

"""The installed plugins by group and name, from entry points; each is loaded when it is resolved.

Decision: one scan collects all groups, because a scan reads a file of every installed distribution. `entrypoints`, which this file alone knows,
ends its scan at the first malformed file of any distribution, and reads in the locale's encoding, where the format is UTF-8; then the standard
library reads the distributions one by one, and the scan names those that it cannot read.
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
import os
from collections import Counter
from collections.abc import Mapping, Sequence

import attrs
from attrs import field

from petra_graph.errors import PluginError, Problem, SpecError, Where, shown, suggestion
from petra_graph.plugins.author_code import importing
from petra_graph.plugins.contract import OWN, Plugin, PluginKind, label, plugin_of
from petra_graph.plugins.kinds import KINDS
from petra_graph.plugins.local_plugins import is_local, resolve_local

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


@frozen(kw_only=True)
class Registry:
    """All entry points; `discover()` makes a registry, and callers pass it along."""

    entries: tuple[Entry, ...]
    unreadable: tuple[str, ...] = ()
    """Distributions whose entry points could not be read."""
    folders: tuple[str, ...] = field(factory=lambda: (os.getcwd(),))  # noqa: PTH109  sys.path holds strings
    """Where modules of local plugins may lie: the current folder, and the specification's before it."""
    made_with: Mapping[str, str] = field(factory=dict)
    """The packages of a run's plugins, by their labels; empty where the specification is not that of a run."""

    @property
    def kinds(self) -> tuple[PluginKind, ...]:
        """All kinds of plugins."""
        return KINDS

    def kind(self, short: str) -> PluginKind:
        """Return the kind by its name on the command line, such as "losses"."""
        return next(kind for kind in self.kinds if kind.short == short)

    def names(self, kind: PluginKind) -> tuple[str, ...]:
        """Return the names that a specification may use, sorted; `dist:name` where two distributions share one."""
        entries = [entry for entry in self.entries if entry.group == kind.group]
        count = Counter(entry.name for entry in entries)
        names = (entry.name if count[entry.name] == 1 else f"{entry.distribution}:{entry.name}" for entry in entries)
        return tuple(sorted(names))

    def within(self, kind: PluginKind, name: str, owners: Sequence[str]) -> str:
        """Return a name that the specification's author did not write, as `dist:name` where several distributions have it.

        Args:
            name: as a default or an architecture gives it.
            owners: the distributions that may be meant, the likeliest first.
        """
        having = {entry.distribution for entry in self.entries if entry.group == kind.group and entry.name == name}
        owner = next((owner for owner in owners if owner in having), None) if len(having) > 1 else None
        return name if owner is None else f"{owner}:{name}"

    def only(self, distributions: Iterable[str]) -> Registry:
        """Return a registry of these distributions alone."""
        names = {canonical(name) for name in distributions}
        return attrs.evolve(self, entries=tuple(entry for entry in self.entries if entry.distribution in names))

    def is_local(self, name: str, kind: PluginKind) -> bool:
        """Return whether a plugin's name is "module:attribute" rather than `dist:name`."""
        distribution = canonical(name.partition(":")[0])
        return is_local(name) and all(
            entry.distribution != distribution for entry in self.entries if entry.group == kind.group
        )

    def resolve(self, kind: PluginKind, name: str) -> Plugin:
        """Return the plugin of that name, loaded; it may also be "module:attribute", which imports the module.

        Raises:
            SpecError: no plugin has this name.
            PluginError: two distributions have a plugin of that name, or it cannot be loaded, or breaks the
                contract of its kind.
        """
        if self.is_local(name, kind):
            return resolve_local(kind, name, self.folders)
        entry = self.find(kind, name)
        plugin = f"{kind.noun} {shown(entry.name)} of {entry.distribution}"
        with importing(f"{plugin} cannot be loaded from {entry.target!r}"):
            code = entry.load()
        return plugin_of(kind, name, code, entry.distribution, self.folders)

    def find(self, kind: PluginKind, name: str) -> Entry:
        """Return the entry point of a name or `dist:name`, without loading it.

        Raises:
            SpecError: no plugin has this name, or its distribution of this project is not installed.
            PluginError: two distributions have one.
        """
        distribution, colon, plain = name.rpartition(":")
        matches = [
            entry
            for entry in self.entries
            if entry.group == kind.group
            and entry.name == plain
            and (not colon or entry.distribution == canonical(distribution))
        ]
        if not matches and label(kind, name) in self.made_with:
            raise PluginError(self._missing(kind, name))
        if not matches:
            raise SpecError(self._unknown(kind, name))
        if len(matches) > 1:
            raise PluginError(_ambiguous(kind, matches, name))
        return matches[0]

    def _missing(self, kind: PluginKind, name: str) -> Problem:
        """Return the problem of a run's plugin that is not installed; that of its package, where all of the package is missing."""
        package = self.made_with[label(kind, name)]
        owner = package.partition(" ")[0]
        here = any(entry.distribution == owner for entry in self.entries)
        why = f"has no {kind.noun} {shown(name)}, which that of the run had" if here else "is not installed"
        # The same position for all, so that ten blocks of a package are one problem.
        return Problem(message=f"{owner} {why}", hint=f"install {package}", where=Where(file="the run's plugins"))

    def _unknown(self, kind: PluginKind, name: str) -> Problem:
        names = self.names(kind)
        hint = suggestion(name, names)
        if self.unreadable:
            hint += f"; entry points that could not be read: {', '.join(self.unreadable)}"
        return Problem(message=f"unknown {kind.noun} {shown(name)}", hint=hint)


def discover(search: Iterable[str] | None = None) -> Registry:
    """Return the registry of the installed plugins; this imports no plugin. With PETRA_GRAPH_PLUGINS=0, those of other projects are left out."""
    entries, unreadable = scan(search)
    found = Registry(entries=entries, unreadable=unreadable)
    return found.only(OWN) if os.environ.get("PETRA_GRAPH_PLUGINS") == "0" else found


def _ambiguous(kind: PluginKind, matches: list[Entry], name: str) -> Problem:
    owners = sorted(entry.distribution for entry in matches)
    plugin = f"{kind.noun} {shown(name)}"
    if len(set(owners)) == 1:
        return Problem(message=f"{plugin} is there twice, in {owners[0]}", hint="its author must rename one of them")
    hint = f"write one of them: {' or '.join(shown(f'{owner}:{name}') for owner in owners)}"
    return Problem(message=f"{plugin} is in {len(owners)} distributions: {', '.join(owners)}", hint=hint)

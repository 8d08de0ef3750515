"""The installed plugins by kind and name; each is loaded when it is resolved."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout

import attrs
from attrs import field, frozen

from petra_graph.errors import PluginError, Problem, SpecError, Where, shown, suggestion
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.contract import OWN, Plugin, PluginKind, is_code_name, plugin_of
from petra_graph.plugins.entry_points import Entry, canonical, scan
from petra_graph.plugins.local_plugins import resolve_local


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

    def of_kind(self, kind: PluginKind) -> dict[str, Entry]:
        """Return the entries of a kind by the names that a specification may use, sorted; `dist:name` where two distributions share one."""
        entries = [entry for entry in self.entries if entry.group == kind.group]
        count = Counter(entry.name for entry in entries)
        names = {
            entry.name if count[entry.name] == 1 else f"{entry.distribution}:{entry.name}": entry for entry in entries
        }
        return dict(sorted(names.items()))

    def names(self, kind: PluginKind) -> tuple[str, ...]:
        return tuple(self.of_kind(kind))

    def within(self, kind: PluginKind, name: str, owners: Sequence[str]) -> str:
        """Return a name that the specification's author did not write, as `dist:name` where several distributions have it.

        Args:
            name: as a default or an architecture gives it.
            owners: the distributions that may be meant, the likeliest first.
        """
        names = self.of_kind(kind)
        return next((full for owner in owners if (full := f"{owner}:{name}") in names), name)

    def only(self, distributions: Iterable[str]) -> Registry:
        """Return a registry of these distributions alone."""
        names = {canonical(name) for name in distributions}
        return attrs.evolve(self, entries=tuple(entry for entry in self.entries if entry.distribution in names))

    def resolve(self, kind: PluginKind, name: str) -> Plugin:
        """Return the plugin of that name, loaded; it may also be "module:attribute", which imports the module.

        Raises:
            SpecError: no plugin has this name.
            PluginError: two distributions have a plugin of that name, or its distribution, with which a run was made, is not installed, or it
                cannot be loaded, or breaks the contract of its kind.
        """
        before, colon, plain = name.rpartition(":")
        of_kind = [entry for entry in self.entries if entry.group == kind.group]
        matches = [one for one in of_kind if one.name == plain and (not colon or one.distribution == canonical(before))]
        plugin, owners = f"{kind.noun} {shown(name)}", sorted(entry.distribution for entry in matches)
        if len(matches) > 1:
            hint = f"write one of them: {' or '.join(shown(f'{owner}:{name}') for owner in owners)}"
            raise PluginError(f"{plugin} is in {len(owners)} distributions: {', '.join(owners)}", hint)
        if matches:
            (entry,) = matches
            failure = f"{kind.noun} {shown(entry.name)} of {entry.distribution} cannot be loaded from {entry.target!r}"
            with author_code(failure), redirect_stdout(sys.stderr):  # what it prints is no result of a command
                code = entry.load()
            return plugin_of(kind, name, code, entry.distribution, self.folders)
        if is_code_name(name) and canonical(before) not in {entry.distribution for entry in of_kind}:
            return resolve_local(kind, name, self.folders)
        if package := self.made_with.get(kind.label(name)):
            owner = package.partition(" ")[0]
            here = any(entry.distribution == owner for entry in self.entries)
            why = f"has no {plugin}, which that of the run had" if here else "is not installed"
            # The same position for all, so that ten blocks of a package are one problem.
            where = Where(file="the run's plugins")
            raise PluginError(Problem(message=f"{owner} {why}", hint=f"install {package}", where=where))
        hint = suggestion(name, self.names(kind))
        if self.unreadable:
            hint += f"; entry points that could not be read: {', '.join(self.unreadable)}"
        raise SpecError(f"unknown {plugin}", hint)


def discover(search: Iterable[str] | None = None) -> Registry:
    """Return the registry of the installed plugins; this imports no plugin. With PETRA_GRAPH_PLUGINS=0, those of other projects are left out."""
    entries, unreadable = scan(search)
    found = Registry(entries=entries, unreadable=unreadable)
    return found.only(OWN) if os.environ.get("PETRA_GRAPH_PLUGINS") == "0" else found

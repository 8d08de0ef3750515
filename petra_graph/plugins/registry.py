"""The installed plugins by kind and name; each is loaded when it is resolved."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout

import attrs
from attrs import field, frozen

from petra_graph.errors import PluginError, SpecError, shown, suggestion
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.contract import FIRST_PARTY, OWN, Plugin, PluginKind, is_code_name, plugin_of
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

    def names(self, kind: PluginKind) -> tuple[str, ...]:
        return tuple(sorted({entry.name for entry in self.entries if entry.group == kind.group}))

    def only(self, distributions: Iterable[str]) -> Registry:
        """Return a registry of these distributions alone."""
        names = {canonical(name) for name in distributions}
        return attrs.evolve(self, entries=tuple(entry for entry in self.entries if entry.distribution in names))

    def resolve(self, kind: PluginKind, name: str) -> Plugin:
        """Return the plugin of that name, loaded; it may also be "module:attribute", which imports the module.

        Decision: a name of the catalog is its own, so that no package that is installed besides changes a specification.

        Raises:
            SpecError: no plugin has this name.
            PluginError: two distributions have a plugin of that name, or it cannot be loaded, or breaks the contract of its kind.
        """
        if is_code_name(name):
            return resolve_local(kind, name, self.folders)
        matches = [entry for entry in self.entries if (entry.group, entry.name) == (kind.group, name)]
        matches = [entry for entry in matches if entry.distribution == FIRST_PARTY] or matches
        plugin = f"{kind.noun} {shown(name)}"
        if not matches:
            hint = suggestion(name, self.names(kind))
            if self.unreadable:
                hint += f"; entry points that could not be read: {', '.join(self.unreadable)}"
            raise SpecError(f"unknown {plugin}", hint)
        if len(matches) > 1:
            owners = ", ".join(sorted(entry.distribution for entry in matches))
            hint = f"write the code of one: {' or '.join(shown(entry.target) for entry in matches)}"
            raise PluginError(f"{plugin} is in {len(matches)} distributions: {owners}", hint)
        (entry,) = matches
        failure = f"{plugin} of {entry.distribution} cannot be loaded from {entry.target!r}"
        with author_code(failure), redirect_stdout(sys.stderr):  # what it prints is no result of a command
            code = entry.load()
        return plugin_of(kind, name, code, entry.distribution, self.folders)


def discover(search: Iterable[str] | None = None) -> Registry:
    """Return the registry of the installed plugins; this imports no plugin. With PETRA_GRAPH_PLUGINS=0, those of other projects are left out."""
    entries, unreadable = scan(search)
    found = Registry(entries=entries, unreadable=unreadable)
    return found.only(OWN) if os.environ.get("PETRA_GRAPH_PLUGINS") == "0" else found

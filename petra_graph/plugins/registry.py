"""The installed plugins by kind and name; each is loaded when it is resolved."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs
from attrs import field, frozen

from petra_graph.errors import PluginError, Problem, SpecError, Where, shown, suggestion
from petra_graph.plugins.contract import OWN, Plugin, PluginKind, importing, label, plugin_of
from petra_graph.plugins.entry_points import Entry, canonical, scan
from petra_graph.plugins.local_plugins import resolve_local
from petra_graph.plugins.options import is_code_name


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

    def named(self, kind: PluginKind, name: str) -> list[Entry]:
        """Return the entries of a name, or of `dist:name`."""
        distribution, colon, plain = name.rpartition(":")
        ours = [entry for entry in self.entries if (entry.group, entry.name) == (kind.group, plain)]
        return [entry for entry in ours if not colon or entry.distribution == canonical(distribution)]

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
        having = [entry.distribution for entry in self.named(kind, name)]
        owner = next((owner for owner in owners if owner in having), None) if len(having) > 1 else None
        return name if owner is None else f"{owner}:{name}"

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
        matches, plugin = self.named(kind, name), f"{kind.noun} {shown(name)}"
        owners = [entry.distribution for entry in matches]
        if len(matches) > 1:
            hint = f"write one of them: {' or '.join(shown(f'{owner}:{name}') for owner in sorted(owners))}"
            raise PluginError(f"{plugin} is in {len(owners)} distributions: {', '.join(sorted(owners))}", hint)
        if matches:
            (entry,) = matches
            plugin = f"{kind.noun} {shown(entry.name)} of {entry.distribution}"
            with importing(f"{plugin} cannot be loaded from {entry.target!r}"):
                code = entry.load()
            return plugin_of(kind, name, code, entry.distribution, self.folders)
        of_kind = {entry.distribution for entry in self.entries if entry.group == kind.group}
        if is_code_name(name) and canonical(name.partition(":")[0]) not in of_kind:
            return resolve_local(kind, name, self.folders)
        if package := self.made_with.get(label(kind, name)):
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

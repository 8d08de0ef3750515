"""The installed plugins by group and name; each is loaded when it is resolved."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

import attrs
from attrs import field, frozen

from petra_graph.errors import PluginError, Problem, SpecError, Where, shown, suggestion
from petra_graph.registry import contracts
from petra_graph.registry.contracts import Declaration
from petra_graph.registry.discovery import Entry, after_prefix, canonical, scan
from petra_graph.registry.local import is_local, resolve_local
from petra_graph.registry.trust import checked_declaration


@frozen
class Group:
    """A group of entry points: the noun of its plugins in messages, and their contract."""

    noun: str
    contract: type[Declaration]


GROUPS: Mapping[str, Group] = {
    contracts.BLOCKS: Group("block", contracts.BlockDeclaration),
    contracts.ARCHITECTURES: Group("architecture", contracts.ArchitectureDeclaration),
    contracts.OPTIMIZERS: Group("optimizer", contracts.OptimizerDeclaration),
    contracts.LR_SCHEDULES: Group("learning-rate schedule", contracts.LrScheduleDeclaration),
    contracts.LOSSES: Group("loss", contracts.LossDeclaration),
    contracts.DATASETS: Group("data set", contracts.DataSetDeclaration),
    contracts.LOGGERS: Group("logger", contracts.LoggerDeclaration),
    contracts.CALLBACKS: Group("callback", contracts.CallbackDeclaration),
}
SHORT_GROUPS: Mapping[str, str] = {group.removeprefix("petra_graph."): group for group in GROUPS}
"""Groups by their names on the command line."""
TABLE_GROUPS: Mapping[str, str] = {
    "architecture": contracts.ARCHITECTURES,
    "loss": contracts.LOSSES,
    "optimizer": contracts.OPTIMIZERS,
    "lr_schedule": contracts.LR_SCHEDULES,
    "data": contracts.DATASETS,
}
"""The group of the plugin that each top-level table of a specification names."""
LIST_GROUPS: Mapping[str, str] = {"logger": contracts.LOGGERS, "callback": contracts.CALLBACKS}
"""The group of the plugins that each top-level array of tables names."""


FIRST_PARTY = "petra-graph"
"""The distribution of the catalog."""


@frozen(kw_only=True)
class Plugin:
    """A plugin whose declaration has been loaded and checked."""

    group: str
    name: str
    """The name that the specification gives."""
    distribution: str
    declaration: Declaration

    def __str__(self) -> str:
        return f"{GROUPS[self.group].noun} {shown(self.name)}"

    @property
    def label(self) -> str:
        """As `petra-graph check` takes it: "blocks/rev-basic"."""
        return _label(self.group, self.name)

    @property
    def owned(self) -> str:
        """The plugin with its distribution, for messages that blame it."""
        plain = self.name.rpartition(":")[2]
        return f"{GROUPS[self.group].noun} {shown(plain)} of {self.distribution}" if self.distribution else str(self)


@frozen(kw_only=True)
class Misplaced:
    """An entry point in a group that does not exist, so that nothing finds it."""

    entry: Entry
    meant: str | None
    """The group that has almost this name."""

    @property
    def problem(self) -> Problem:
        """The entry point, for the author of its distribution."""
        entry = self.entry
        message = f"{entry.distribution} registers {shown(entry.name)} in the entry-point group {shown(entry.group)}, which does not exist"
        right = f"its author must write {shown(self.meant)}" if self.meant else f"allowed: {', '.join(sorted(GROUPS))}"
        return Problem(message=message, hint=right)


_READ_AT_ONCE = 60
"""Names in one hint."""
_CLOSE = 0.75
"""How alike a misspelt group and the one that it means are, for difflib."""


@frozen(kw_only=True)
class Registry:
    """All entry points; `discover()` makes a registry, and callers pass it along."""

    entries: tuple[Entry, ...]
    unreadable: tuple[str, ...] = ()
    """Distributions whose entry points could not be read."""
    folders: tuple[str, ...] = field(factory=lambda: (os.getcwd(),))  # noqa: PTH109  sys.path holds strings
    """Where modules of local plugins may lie: the current folder, and the specification's before it."""
    made_with: Mapping[str, str] = field(factory=dict)
    """The packages of a run's plugins, by their labels; empty where the specification is of no run."""

    def names(self, group: str) -> tuple[str, ...]:
        """Return the names that a specification may use, sorted; `dist:name` where two distributions share one."""
        entries = [entry for entry in self.entries if entry.group == group]
        count = Counter(entry.name for entry in entries)
        names = (entry.name if count[entry.name] == 1 else f"{entry.distribution}:{entry.name}" for entry in entries)
        return tuple(sorted(names))

    def within(self, group: str, name: str, owners: Sequence[str]) -> str:
        """Return a name that the specification's author did not write, as `dist:name` where several distributions have it.

        Args:
            group: of the plugin.
            name: as a default or an architecture gives it.
            owners: the distributions that may be meant, the likeliest first.
        """
        having = {entry.distribution for entry in self.entries if entry.group == group and entry.name == name}
        owner = next((owner for owner in owners if owner in having), None) if len(having) > 1 else None
        return name if owner is None else f"{owner}:{name}"

    @property
    def misplaced(self) -> tuple[Misplaced, ...]:
        """The entry points in groups that are none of ours, though they are called almost like one."""
        groups = {entry.group for entry in self.entries} - GROUPS.keys()
        meant = {group: _meant(group) for group in groups}
        return tuple(
            Misplaced(entry=entry, meant=meant[entry.group])
            for entry in self.entries
            if meant.get(entry.group) or (entry.group in groups and entry.group.startswith("petra_graph."))
        )

    def only(self, distributions: Iterable[str]) -> Registry:
        """Return a registry of these distributions alone."""
        names = {canonical(name) for name in distributions}
        return attrs.evolve(self, entries=tuple(entry for entry in self.entries if entry.distribution in names))

    def is_local(self, name: str, group: str) -> bool:
        """Return whether a plugin's name is "module:attribute" rather than `dist:name`."""
        distribution = canonical(name.partition(":")[0])
        return is_local(name) and all(
            entry.distribution != distribution for entry in self.entries if entry.group == group
        )

    def resolve(self, group: str, name: str) -> Plugin:
        """Return the plugin of that name, loaded; it may also be "module:attribute", which imports the module.

        Raises:
            SpecError: there is no such plugin.
            PluginError: two distributions have a plugin of that name, or it cannot be loaded, or breaks the
                contract of its group.
        """
        if self.is_local(name, group):
            return Plugin(group=group, name=name, distribution="", declaration=resolve_local(group, name, self.folders))
        entry = self.find(group, name)
        declaration = checked_declaration(entry, GROUPS[group].noun, GROUPS[group].contract)
        return Plugin(group=group, name=name, distribution=entry.distribution, declaration=declaration)

    def find(self, group: str, name: str) -> Entry:
        """Return the entry point of a name or `dist:name`, without loading it.

        Raises:
            SpecError: there is no such plugin.
            PluginError: there are two.
        """
        distribution, colon, plain = name.rpartition(":")
        matches = [
            entry
            for entry in self.entries
            if entry.group == group
            and entry.name == plain
            and (not colon or entry.distribution == canonical(distribution))
        ]
        if not matches and _label(group, name) in self.made_with:
            raise PluginError(self._missing(group, name))
        if not matches:
            raise SpecError(self._unknown(group, name))
        if len(matches) > 1:
            raise PluginError(_ambiguous(matches, name))
        return matches[0]

    def _suggestion(self, group: str, name: str) -> str:
        """Return the likeliest name with all names, or with the command that lists them where they are many."""
        names = self.names(group)
        if len(names) <= _READ_AT_ONCE:
            return suggestion(name, names)
        close = get_close_matches(name, names, n=3)
        meant = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
        return f"{meant}`petra-graph list {group.removeprefix('petra_graph.')}` shows all {len(names)}"

    def _missing(self, group: str, name: str) -> Problem:
        """Return the problem of a run's plugin that is gone; that of its package, where all of it is."""
        package = self.made_with[_label(group, name)]
        owner = package.partition(" ")[0]
        here = any(entry.distribution == owner for entry in self.entries)
        why = f"has no {GROUPS[group].noun} {shown(name)}, which that of the run had" if here else "is not installed"
        # The same position for all, so that ten blocks of a package are one problem.
        return Problem(message=f"{owner} {why}", hint=f"install {package}", where=Where(file="the run's plugins"))

    def _unknown(self, group: str, name: str) -> Problem:
        hint = self._suggestion(group, name)
        plain = name.rpartition(":")[2]
        for one in self.misplaced:
            if one.entry.name == plain and one.meant in {group, None}:
                hint += f"; {one.problem.message}: {one.problem.hint}"
        if self.unreadable:
            hint += f"; entry points that could not be read: {', '.join(self.unreadable)}"
        return Problem(message=f"unknown {GROUPS[group].noun} {shown(name)}", hint=hint)


def _label(group: str, name: str) -> str:
    return f"{group.removeprefix('petra_graph.')}/{name.rpartition(':')[2]}"


def _meant(group: str) -> str | None:
    close = get_close_matches(after_prefix(group), SHORT_GROUPS, n=1, cutoff=_CLOSE)
    return SHORT_GROUPS[close[0]] if close else None


def discover(search: Iterable[str] | None = None) -> Registry:
    """Return the registry of the installed plugins; this imports no plugin."""
    entries, unreadable = scan(search)
    return Registry(entries=entries, unreadable=unreadable)


def _ambiguous(matches: list[Entry], name: str) -> Problem:
    owners = sorted(entry.distribution for entry in matches)
    plugin = f"{GROUPS[matches[0].group].noun} {shown(name)}"
    if len(set(owners)) == 1:
        return Problem(message=f"{plugin} is declared twice by {owners[0]}", hint="its author must rename one of them")
    hint = f"write one of them: {' or '.join(shown(f'{owner}:{name}') for owner in owners)}"
    return Problem(message=f"{plugin} is in {len(owners)} distributions: {', '.join(owners)}", hint=hint)

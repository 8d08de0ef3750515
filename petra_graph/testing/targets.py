"""The plugins that `petra-graph check` is asked for: one by name, all of a distribution, or what a module has."""

from __future__ import annotations

import sys
from difflib import get_close_matches

import attrs

from petra_graph.errors import PluginError, Problem, SpecError, shown
from petra_graph.registry.contracts import Declaration
from petra_graph.registry.declaration_faults import api_fault, described, find_fault
from petra_graph.registry.local import is_local, missing_module, possible_groups
from petra_graph.registry.registry import GROUPS, SHORT_GROUPS, Plugin, Registry
from petra_graph.registry.trust import resolve_location


@attrs.frozen(kw_only=True)
class Target:
    """A plugin to check.

    Attributes:
        label: as in "blocks/rev-basic", or "my_module:MyBlock".
        plugin: loaded; None where it cannot be.
        fault: why it cannot be loaded; "" where it can.
    """

    label: str
    plugin: Plugin | None = None
    fault: str = ""


def find_targets(registry: Registry, asked: str) -> list[Target]:
    """Return the plugins of a name, a distribution or a location.

    Args:
        registry: the installed plugins, and the folders of modules.
        asked: "rev-basic", "blocks/rev-basic", "my-distribution:rev-basic", "my-distribution", "my_module:attribute" or
            "losses/my_module:attribute".

    Raises:
        SpecError: nothing is called so, or several plugins are.
        PluginError: the module cannot be imported, or has no such plugin.
    """
    group, slash, name = asked.partition("/")
    if slash and group in SHORT_GROUPS:
        if registry.is_local(name, SHORT_GROUPS[group]):
            return [Target(label=asked, plugin=registry.resolve(SHORT_GROUPS[group], name))]
        registry.find(SHORT_GROUPS[group], name)
        return [_target(registry, group, name)]
    having = [group for group in SHORT_GROUPS if _has(registry, SHORT_GROUPS[group], asked)]
    if len(having) > 1:
        listed = " or ".join(shown(f"{group}/{asked}") for group in having)
        raise SpecError(f"{shown(asked)} is the name of {len(having)} plugins", f"write one of them: {listed}")
    if having:
        return [_target(registry, having[0], asked)]
    entries = registry.only([asked]).entries
    if entries:
        owner = entries[0].distribution
        found = [(group, one.name) for group in SHORT_GROUPS for one in entries if one.group == SHORT_GROUPS[group]]
        return [_target(registry, group, _used(registry, group, owner, name)) for group, name in found]
    if is_local(asked):
        return [_of_module(registry, asked)]
    plain = {one.name for one in registry.entries} | {one.distribution for one in registry.entries}
    close = get_close_matches(asked, plain, n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    hint = f"{meant}`petra-graph list` shows the plugins; distributions: {', '.join(sorted({one.distribution for one in registry.entries}))}"
    raise SpecError(f"nothing that is installed is called {shown(asked)}", hint)


def _used(registry: Registry, group: str, owner: str, name: str) -> str:
    """Return the name that a specification uses."""
    return name if name in registry.names(SHORT_GROUPS[group]) else f"{owner}:{name}"


def _has(registry: Registry, group: str, name: str) -> bool:
    try:
        registry.find(group, name)
    except SpecError:
        return False
    except PluginError:  # several distributions have it, which resolving reports
        return True
    return True


def _target(registry: Registry, group: str, name: str) -> Target:
    label = f"{group}/{name.rpartition(':')[2]}"
    try:
        return Target(label=label, plugin=registry.resolve(SHORT_GROUPS[group], name))
    except PluginError as error:
        if any("distributions" in problem.message for problem in error.problems):
            raise
        return Target(label=label, fault="; ".join(problem.message for problem in error.problems))


def _of_module(registry: Registry, location: str) -> Target:
    """Return the plugin that a declaration, or the class of a block, a data set or a callback is."""
    missing = missing_module(location, registry.folders, "plugin")
    if missing is not None:
        raise SpecError(missing)
    sys.path.extend(folder for folder in registry.folders if folder not in sys.path)
    value = resolve_location(location, f"{shown(location)} cannot be loaded")
    if isinstance(value, Declaration):
        for group, of_group in GROUPS.items():
            if isinstance(value, of_group.contract):
                plugin = Plugin(group=group, name=location, distribution="", declaration=value)
                fault = api_fault(value) or find_fault(value, of_group.contract)
                return Target(
                    label=location, plugin=None if fault else plugin, fault=fault and f"the declaration {fault}"
                )
    possible = possible_groups(value)
    if len(possible) == 1:
        return Target(label=location, plugin=registry.resolve(possible[0], location))
    if possible:
        written = " or ".join(
            shown(f"{short}/{location}") for short, group in SHORT_GROUPS.items() if group in possible
        )
        raise SpecError(f"{shown(location)} may be a plugin of {len(possible)} kinds", f"write one of them: {written}")
    raise PluginError(
        Problem(
            message=f"{shown(location)} is {described(value)}, and no plugin",
            hint="name a declaration, a class or a function",
        )
    )

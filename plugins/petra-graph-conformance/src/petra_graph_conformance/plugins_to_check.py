"""The plugins that `petra-graph check` is asked for: one by name, all of a distribution, or what a module has."""

from __future__ import annotations

from difflib import get_close_matches

import attrs

from petra_graph.errors import PluginError, Problem, SpecError, shown
from petra_graph.kinds.author_code import resolve_location
from petra_graph.kinds.declaration import Declaration, api_fault, described, find_fault, stated_by
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin import label as label_of
from petra_graph.kinds.plugin_kind import PluginKind
from petra_graph.registry.local_plugins import is_local, look_in, missing_module, possible_kinds
from petra_graph.registry.registry import Registry
from petra_graph_conformance.importers_of_torch import resolve_and_watch
from petra_graph_conformance.likely_trials import in_words


@attrs.frozen(kw_only=True)
class Target:
    """A plugin to check.

    Attributes:
        label: as in "blocks/rev-basic", or "my_module:MyBlock".
        plugin: loaded; None where it cannot be.
        fault: why it cannot be loaded; "" where it can.
        imports_torch: the module that imports torch where an installed declaration is imported; "" where none does.
    """

    label: str
    plugin: Plugin | None = None
    fault: str = ""
    imports_torch: str = ""


def find_targets(registry: Registry, asked: str) -> list[Target]:
    """Return the plugins of a name, a distribution or a location.

    Args:
        registry: the installed plugins, and the folders of modules.
        asked: "rev-basic", "blocks/rev-basic", "my-distribution:rev-basic", "my-distribution", "my_module:attribute" or
            "losses/my_module:attribute".

    Raises:
        SpecError: no plugin has this name, or several have it.
        PluginError: the module cannot be imported, or does not have the plugin.
    """
    look_in(registry.folders)  # modules that a location or an option names
    group, slash, name = asked.partition("/")
    kind = next((kind for kind in registry.kinds if slash and kind.short == group), None)
    if kind is not None:
        if registry.is_local(name, kind):
            return [Target(label=asked, plugin=registry.resolve(kind, name))]
        registry.find(kind, name)
        return [_target(registry, kind, name)]
    having = [kind for kind in registry.kinds if _has(registry, kind, asked)]
    if len(having) > 1:
        listed = " or ".join(shown(f"{kind.short}/{asked}") for kind in having)
        raise SpecError(f"{shown(asked)} is the name of {len(having)} plugins", f"write one of them: {listed}")
    if having:
        return [_target(registry, having[0], asked)]
    entries = registry.only([asked]).entries
    if entries:
        owner = entries[0].distribution
        found = [(kind, one.name) for kind in registry.kinds for one in entries if one.group == kind.group]
        return [_target(registry, kind, _used(registry, kind, owner, name)) for kind, name in found]
    if is_local(asked):
        return [_of_module(registry, asked)]
    if asked.isidentifier() and missing_module(asked, registry.folders) is None:
        hint = f"it is a module: name what is to be checked in it, as in {asked}:MyBlock"
        raise SpecError(f"nothing that is installed is called {shown(asked)}", hint)
    plain = {one.name for one in registry.entries} | {one.distribution for one in registry.entries}
    close = get_close_matches(asked, plain, n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    hint = f"{meant}`petra-graph list` shows the plugins; distributions: {', '.join(sorted({one.distribution for one in registry.entries}))}"
    raise SpecError(f"nothing that is installed is called {shown(asked)}", hint)


def _used(registry: Registry, kind: PluginKind, owner: str, name: str) -> str:
    """Return the name that a specification uses."""
    return name if name in registry.names(kind) else f"{owner}:{name}"


def _has(registry: Registry, kind: PluginKind, name: str) -> bool:
    try:
        registry.find(kind, name)
    except SpecError:
        return False
    except PluginError:  # several distributions have it, which resolving reports
        return True
    return True


def _target(registry: Registry, kind: PluginKind, name: str) -> Target:
    label = label_of(kind, name)
    try:
        plugin, importer = resolve_and_watch(registry, kind, name)
        return Target(label=label, plugin=plugin, imports_torch=importer)
    except PluginError as error:
        if any("distributions" in problem.message for problem in error.problems):
            raise
        return Target(label=label, fault=in_words(error))


def _of_module(registry: Registry, location: str) -> Target:
    """Return the plugin that a declaration, or the class of a block, a data set or a callback is."""
    missing = missing_module(location, registry.folders, "plugin", "plugins")
    if missing is not None:
        raise SpecError(missing)
    value = stated_by(resolve_location(location, f"{shown(location)} cannot be loaded"))
    if isinstance(value, Declaration):
        for kind in registry.kinds:
            if isinstance(value, kind.declaration):
                plugin = Plugin(kind=kind, name=location, distribution="", declaration=value)
                fault = api_fault(value) or find_fault(value, kind.declaration)
                return Target(
                    label=location, plugin=None if fault else plugin, fault=fault and f"the declaration {fault}"
                )
    possible = possible_kinds(value, registry.kinds)
    if len(possible) == 1:
        return Target(label=location, plugin=registry.resolve(possible[0], location))
    if possible:
        written = " or ".join(shown(f"{kind.short}/{location}") for kind in possible)
        raise SpecError(f"{shown(location)} may be a plugin of {len(possible)} kinds", f"write one of them: {written}")
    raise PluginError(
        Problem(
            message=f"{shown(location)} is {described(value)}, and no plugin",
            hint="name a declaration, a class or a function",
        )
    )

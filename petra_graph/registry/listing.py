"""The installed plugins of a group, broken ones included."""

from __future__ import annotations

from attrs import frozen

from petra_graph.errors import PetraGraphError
from petra_graph.registry.contracts import BlockDeclaration
from petra_graph.registry.registry import SHORT_GROUPS, Registry


@frozen(kw_only=True)
class PluginSummary:
    """One plugin of a list."""

    group: str
    """Short: "blocks"."""
    name: str
    distribution: str
    kind: str = ""
    """The most that a block can be; "" for other plugins."""
    summary: str = ""
    fault: str = ""
    """Why the plugin cannot be used; "" where it can."""


def list_group(registry: Registry, group: str) -> tuple[PluginSummary, ...]:
    """Return the plugins of a group ("blocks") in the order of their names; a broken plugin has a fault."""
    names = registry.names(SHORT_GROUPS[group])
    return tuple(_summary(registry, group, name) for name in dict.fromkeys(names))


def _summary(registry: Registry, group: str, name: str) -> PluginSummary:
    distribution = ""
    try:
        distribution = registry.find(SHORT_GROUPS[group], name).distribution
        declaration = registry.resolve(SHORT_GROUPS[group], name).declaration
    except PetraGraphError as error:
        reason = "; ".join(problem.message for problem in error.problems)
        return PluginSummary(group=group, name=name, distribution=distribution, fault=reason)
    kind = declaration.kind if isinstance(declaration, BlockDeclaration) else ""
    return PluginSummary(group=group, name=name, distribution=distribution, kind=kind, summary=declaration.summary)

"""What is installed, plugin by plugin, broken ones among them."""

from __future__ import annotations

from attrs import frozen

from petra_graph.errors import PetraGraphError
from petra_graph.registry.contracts import BlockDeclaration
from petra_graph.registry.registry import SHORT_GROUPS, Registry


@frozen(kw_only=True)
class Listed:
    """One plugin, as a list shows it."""

    group: str
    """Short: "blocks"."""
    name: str
    distribution: str
    kind: str = ""
    """What a block can be at most; "" for what is no block."""
    summary: str = ""
    fault: str = ""
    """Why it cannot be used; "" where it can."""


def list_group(registry: Registry, group: str) -> tuple[Listed, ...]:
    """List the plugins of a group ("blocks"), by name; what is broken is listed with the reason."""
    names = registry.names(SHORT_GROUPS[group])
    return tuple(_listed(registry, group, name) for name in dict.fromkeys(names))


def _listed(registry: Registry, group: str, name: str) -> Listed:
    distribution = ""
    try:
        distribution = registry.find(SHORT_GROUPS[group], name).distribution
        declaration = registry.resolve(SHORT_GROUPS[group], name).declaration
    except PetraGraphError as error:
        reason = "; ".join(problem.message for problem in error.problems)
        return Listed(group=group, name=name, distribution=distribution, fault=reason)
    kind = declaration.kind if isinstance(declaration, BlockDeclaration) else ""
    return Listed(group=group, name=name, distribution=distribution, kind=kind, summary=declaration.summary)

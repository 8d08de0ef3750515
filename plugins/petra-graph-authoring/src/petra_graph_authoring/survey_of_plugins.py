"""The summaries of many plugins, each imported here; a broken one costs its own line."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from attrs import frozen
from petra_graph_conformance.importers_of_torch import resolve_and_watch

from petra_graph.errors import PetraGraphError
from petra_graph.kinds.author_code import author_code
from petra_graph.kinds.block import BlockDeclaration
from petra_graph.kinds.plugin import Plugin, code_location
from petra_graph.registry.registry import Registry


@frozen(kw_only=True)
class PluginSummary:
    """One plugin of a list."""

    group: str
    """The kind's name on the command line: "blocks"."""
    name: str
    distribution: str
    kind: str = ""
    """The most that a block can be; "" for other plugins."""
    summary: str = ""
    fault: str = ""
    """Why the plugin cannot be used; "" where it can."""
    remedy: str = ""
    """What to do about the fault, where its message says so; the same as a run says."""
    imports_torch: str = ""
    """The module that imports torch where the declaration is imported; "" where none does."""


def list_groups(registry: Registry, groups: Sequence[str]) -> tuple[PluginSummary, ...]:
    """Return the plugins of groups ("blocks"), in the order of their names; a broken plugin has a fault."""
    named = [(group, name) for group in groups for name in dict.fromkeys(registry.names(registry.kind(group)))]
    return tuple(_summary(registry, group, name) for group, name in named)


def _summary(registry: Registry, group: str, name: str) -> PluginSummary:
    """Import a plugin, and return its line."""
    of_kind = registry.kind(group)
    distribution = kind = summary = importer = fault = remedy = ""
    try:
        distribution = registry.find(of_kind, name).distribution
        plugin, importer = resolve_and_watch(registry, of_kind, name)
        declaration = plugin.declaration
        kind = declaration.kind if isinstance(declaration, BlockDeclaration) else ""
        summary = " ".join(declaration.summary.split())
        _find_code(plugin)
    except PetraGraphError as error:
        fault = "; ".join(problem.message for problem in error.problems)
        remedy = "; ".join(dict.fromkeys(problem.hint for problem in error.problems if problem.hint))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  the code of a plugin may raise anything, SystemExit among it
        fault = f"its import raises {type(error).__name__}"
    return PluginSummary(
        group=group,
        name=name,
        distribution=distribution,
        kind=kind,
        summary=summary,
        fault=fault,
        remedy=remedy,
        imports_torch=importer,
    )


def _find_code(plugin: Plugin) -> None:
    """Look whether the module of a plugin's code exists, and import only the packages around it.

    Raises:
        PluginError: it does not, in the words of `load`.
    """
    location, failure, mend = code_location(plugin)
    module = location.partition(":")[0]
    with author_code(failure, mend=mend):
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)

"""Which modules import torch where a declaration is imported: it must not, since `validate` and `list` would wait for it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType

from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import PluginKind
from petra_graph.registry.registry import Registry

_NEED_TORCH = ("torch", "petra_graph.blocks", "petra_graph_conformance")
NO_TORCH_REMEDY = "keep declarations in a module that imports petra_graph.plugins alone, and __init__ empty"


@contextmanager
def importers_of_torch() -> Iterator[list[str]]:
    """Collect the modules imported inside the context that have something of torch, whether or not it was imported before: a declaration's must not."""
    found: list[str] = []
    before = set(sys.modules)
    yield found
    for name, module in list(sys.modules.items()):
        if name not in before and not _is_below(name, ("torch", "petra_graph")):
            used = [one for one in vars(module).values() if isinstance(one, ModuleType | type | FunctionType)]
            owners = (one.__name__ if isinstance(one, ModuleType) else one.__module__ for one in used)
            found += [name] if any(_is_below(owner, _NEED_TORCH) for owner in owners) else []


def _is_below(module: str, packages: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def resolve_and_watch(registry: Registry, kind: PluginKind, name: str) -> tuple[Plugin, str]:
    """Return an installed plugin as `Registry.resolve` does, and the module that imports torch where its declaration is imported.

    The module is "" where none does, and where the entry point names the plugin's code itself: that is the author's choice.
    """
    with importers_of_torch() as importers:
        plugin = registry.resolve(kind, name)
    names_code = not registry.is_local(name, kind) and registry.find(kind, name).target == plugin.declaration.build
    return plugin, "" if names_code else next(iter(importers), "")

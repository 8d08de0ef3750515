"""The code behind a declaration, imported when it is needed."""

from __future__ import annotations

import importlib
from typing import Any

from petra_graph.registry.registry import Plugin
from petra_graph.registry.trust import guarded


def load(plugin: Plugin) -> Any:
    """Import what the declaration's `build` names: a block's class, or the function that makes the plugin's object.

    Raises:
        PluginError: the import fails, or the module has no such attribute.
    """
    module, _, attribute = plugin.declaration.build.partition(":")

    def find() -> Any:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        return found

    owner = f" of {plugin.distribution}" if plugin.distribution else ""
    return guarded(find, f"{plugin}{owner} cannot be built from {plugin.declaration.build!r}")


def built(plugin: Plugin, *arguments: Any) -> Any:
    """Call what a plugin's declaration names.

    Raises:
        PluginError: it raised something that is no error of ours.
    """
    build = load(plugin)
    return guarded(lambda: build(*arguments), f"{plugin} cannot be built")

"""A plugin with its options: the options read, then its code imported and called."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from petra_graph.errors import Path, Problem
from petra_graph.registry.contracts import DataFacts, LoggerDeclaration
from petra_graph.registry.registry import Plugin
from petra_graph.registry.trust import run_plugin_code
from petra_graph.spec.model import NodeSpec
from petra_graph.spec.structure import structure_as


def read_options(plugin: Plugin, mapping: Mapping[str, Any], path: Path) -> tuple[Any | None, tuple[Problem, ...]]:
    """Return the plugin's `options` table at `path` as the plugin's own class, or None and the table's problems."""
    return structure_as(plugin.declaration.options, mapping, path, names={path: f"the options of {plugin}"})


def missing_package(plugin: Plugin) -> Problem | None:
    """Return the problem of a logger whose package is not installed; this imports nothing."""
    declaration = plugin.declaration
    if not isinstance(declaration, LoggerDeclaration) or not declaration.requires:
        return None
    if find_spec(declaration.requires) is not None:
        return None
    hint = declaration.install or f"install the package that has {declaration.requires!r}"
    return Problem(message=f"{plugin} needs the module {declaration.requires!r}, which is not installed", hint=hint)


def load(plugin: Plugin) -> Any:
    """Import what the declaration's `build` names: a block's class, or the function that makes the plugin's object.

    Raises:
        PluginError: the import fails, or the module has no such attribute.
    """
    target = plugin.declaration.build
    owner = f" of {plugin.distribution}" if plugin.distribution else ""
    return run_plugin_code(lambda: pkgutil.resolve_name(target), f"{plugin}{owner} cannot be built from {target!r}")


def build_plugin(plugin: Plugin, *arguments: Any) -> Any:
    """Return the object that the plugin's `build` makes of these arguments.

    Raises:
        PluginError: the plugin's code raised an exception that is not one of ours.
    """
    build = load(plugin)
    return run_plugin_code(lambda: build(*arguments), f"{plugin} cannot be built")


def expand(plugin: Plugin, options: Any, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Return the nodes of an architecture with these options, for a data set's samples; its code does not import torch.

    Raises:
        SpecError: its options or the data do not make a network; paths count from the `options` table.
        PluginError: the architecture cannot be loaded, or failed.
    """
    build = load(plugin)

    def make() -> tuple[NodeSpec, ...]:
        nodes = tuple(build(options, facts))
        if not nodes or not all(isinstance(node, NodeSpec) for node in nodes):
            raise TypeError("an architecture must return NodeSpec values")
        return nodes

    return run_plugin_code(make, f"{plugin} cannot be written out as nodes")

"""A plugin with its options: the options read, then its code imported and called, and what it returns checked."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, cast

from petra_graph.errors import Path, PluginError, Problem
from petra_graph.registry.built import AUTHOR, checked
from petra_graph.registry.call_faults import LOGGER, call_faults
from petra_graph.registry.contracts import DataFacts, DataSetDeclaration, LoggerDeclaration
from petra_graph.registry.declaration_faults import described, facts_fault
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
    return run_plugin_code(lambda: pkgutil.resolve_name(target), f"{plugin.owned} cannot be built from {target!r}")


def load_logger(plugin: Plugin) -> None:
    """Import the code of a logger, which is built when its run has a directory; a class is looked at now.

    Raises:
        PluginError: as `load`, or a method of the class cannot be called as a run calls it.
    """
    loaded = load(plugin)
    fault = next(call_faults(loaded, LOGGER), "") if isinstance(loaded, type) else ""
    if fault:
        raise PluginError(f"{plugin.owned} is broken: {fault}", AUTHOR)


def build_plugin(plugin: Plugin, *arguments: Any) -> Any:
    """Return the object that the plugin's `build` makes of these arguments, checked against the contract of its kind.

    Raises:
        PluginError: the plugin's code raised an exception that is not one of ours, or the object breaks the contract.
    """
    build = load(plugin)
    return checked(plugin, arguments, run_plugin_code(lambda: build(*arguments), f"{plugin.owned} cannot be built"))


def builder(plugin: Plugin) -> Callable[..., Any]:
    """Return `build_plugin` of a plugin that is built many times: the optimizer of each stage. Its code is imported now.

    Raises:
        PluginError: as `load`.
    """
    load(plugin)
    return partial(build_plugin, plugin)


def declared_facts(plugin: Plugin, options: Any) -> DataFacts:
    """Return the facts that a data set's declaration gives.

    Raises:
        PluginError: its function failed, or returned no facts that samples could have.
    """
    declaration = cast(DataSetDeclaration, plugin.declaration)
    facts = run_plugin_code(lambda: declaration.facts(options), f"{plugin.owned} cannot say what its samples are")
    fault = facts_fault(facts)
    if fault:
        raise PluginError(f"{plugin.owned} is broken: the facts of its declaration {fault}", AUTHOR)
    return facts


def declared_samples(plugin: Plugin, options: Any) -> int | None:
    """Return how many training samples a data set's declaration says there are; None where it does not say.

    Raises:
        PluginError: its function failed, or returned no number.
    """
    count = cast(DataSetDeclaration, plugin.declaration).training_samples
    if count is None:
        return None
    found = run_plugin_code(lambda: count(options), f"{plugin.owned} cannot say how many samples it has")
    if found is not None and (not isinstance(found, int) or found < 0):
        message = f"{plugin.owned} is broken: `training_samples` of its declaration returns {described(found)}, not a number of samples"
        raise PluginError(message, AUTHOR)
    return found


def expand(plugin: Plugin, options: Any, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Return the nodes of an architecture with these options, for a data set's samples; its code does not import torch.

    Raises:
        SpecError: its options or the data do not make a network; paths count from the `options` table.
        PluginError: the architecture cannot be loaded, failed, or returned something else than nodes.
    """
    build = load(plugin)
    made = run_plugin_code(lambda: build(options, facts), f"{plugin.owned} cannot be written out as nodes")
    fault = ""
    if not isinstance(made, tuple | list):
        fault = f"its build returns {described(made)}, not a tuple of NodeSpec"
    elif not made:
        fault = "its build returns no node"
    elif others := [node for node in made if not isinstance(node, NodeSpec)]:
        fault = f"its build returns {described(others[0])} among its nodes, not a NodeSpec"
    if fault:
        raise PluginError(f"{plugin.owned} is broken: {fault}", AUTHOR)
    return tuple(made)
